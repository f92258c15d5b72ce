"""Random: the control that every table needs.

*Random Attention: Rethinking KV Cache Eviction for Efficient Reasoning*, arXiv 2609.03430, as a control for prompts.
Stages: score Drawn(seed) · after the prompt.
A method that does not beat it has found no signal. Nothing is protected, and every KV head of every layer draws for itself.

BibTeX:
    @misc{random2026, title={Random Attention: Rethinking KV Cache Eviction for Efficient Reasoning},
      year={2026}, eprint={2609.03430}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.random(budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.policy import Policy
from kvjax.score import Drawn
from kvjax.select import TopK


def random(budget: int | float = 256, seed: int = 0, sinks: int = 0, recent: int = 0) -> Policy:
    """Keep `budget` tokens of the prompt drawn at random; the first `sinks` and the last `recent` are kept where asked."""
    return Policy(score=Drawn(seed), select=TopK(sinks=sinks, recent=recent), budget=budget)
