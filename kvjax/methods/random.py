"""Random: the control that every table needs.

*Random Attention: Rethinking KV Cache Eviction for Efficient Reasoning*, arXiv 2609.03430, as a control for prompts.
Stages: score Drawn(seed) · after the prompt, or at every step.
A method that does not beat it has found no signal. Nothing is protected, and every KV head of every layer draws for itself. A
token's number is drawn once, so what is held while decoding is a uniform sample of all tokens so far.

BibTeX:
    @misc{random2026, title={Random Attention: Rethinking KV Cache Eviction for Efficient Reasoning},
      year={2026}, eprint={2609.03430}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.random(budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.policy import Policy
from kvjax.schedule import AfterPrefill, Every
from kvjax.score import Drawn
from kvjax.select import TopK


def random(budget: int | float = 256, seed: int = 0, sinks: int = 0, recent: int = 0, decoding: bool = False) -> Policy:
    """Keep `budget` tokens drawn at random, of the prompt or of all so far, and where asked the first `sinks` and last `recent`.

    Args:
        budget: slots per KV head, or the share of the prompt kept.   seed: of the draws.
        decoding: whether decoded tokens are drawn, too, one out for each one in, or the prompt's alone.
    """
    when = Every(1) if decoding else AfterPrefill()
    return Policy(score=Drawn(seed), select=TopK(sinks=sinks, recent=recent), when=when, budget=budget)
