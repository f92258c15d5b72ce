"""LazyEviction: tokens that are due to be looked at again stay; evictions come only every few steps.

*LazyEviction: Lagged KV Eviction with Attention Pattern Observation for Efficient Long Reasoning*, arXiv 2506.15969, section 3.
Stages: score Recurrence(alpha) · select TopK(recent=window) · every `window` steps.
The window is the 80th percentile of the periods seen, for a distilled model of 7B 101 on GSM8K, 175 on MATH-500, 363 on AIME:
measure yours.
Differs: a hit is one of any query head of the KV head (the release ranks query heads, whose keys it repeats); the prompt's own
queries count as steps (in the release all of the prompt starts at its last position), and the prompt is cut to the budget, too,
unless after_prefill=False. The first term is the paper's, 2 σ(-D / MRI); the release has 2 σ(-1 - D / MRI), which is
`.replace(score=Recurrence(alpha, shift=1.0))`. In float32 the first term is lost beside the second some 17 periods after a last
hit: of tokens with one period that are idle for longer the earlier stays.

BibTeX:
    @misc{zhang2025lazyeviction,
      title={LazyEviction: Lagged KV Eviction with Attention Pattern Observation for Efficient Long Reasoning},
      author={Haoyue Zhang and others}, year={2025}, eprint={2506.15969}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.lazy_eviction(budget=512)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.policy import Policy
from kvjax.schedule import Every
from kvjax.score import Recurrence
from kvjax.select import TopK


def lazy_eviction(budget: int | float = 1024, window: int = 175, alpha: float = 1e-4, after_prefill: bool = True) -> Policy:
    """Keep the last `window` tokens and the most due; up to budget + window slots are held between evictions.

    Args:
        window: last tokens that stay, and steps between evictions; a budget of no more slots leaves a local window.
        alpha: attention from it on is a hit.   after_prefill: whether the prompt is cut to the budget, too.
    """
    when = Every(window, after_prefill=after_prefill)
    return Policy(score=Recurrence(alpha), select=TopK(recent=window), when=when, budget=budget)
