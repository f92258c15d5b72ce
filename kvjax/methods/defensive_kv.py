"""DefensiveKV: the worst case of the window's attention, weighed by what values add, heads sharing a layer.

*Taming the Fragility of KV Cache Eviction in LLM Inference*, arXiv 2510.13334, on CriticalKV, arXiv 2502.03805.
Stages: score WorstCase(window, threshold) · allocate ForcedFirst(Adaptive(0)) · select ForcedTopK over TopK(recent=window) · after
the prompt.
Differs: the window always stays (the release leaves ties at the highest score to chance); every head keeps a slot; values are
those of KV heads, their norms averaged over the group. A layer holds heads · floor(share · length) slots, the release
floor(share · length · heads).

BibTeX:
    @misc{feng2025defensivekv, title={Taming the Fragility of KV Cache Eviction in LLM Inference},
      author={Yuan Feng and others}, year={2025}, eprint={2510.13334}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.defensive_kv(budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.allocate import Adaptive
from kvjax.allocate.forced import ForcedFirst
from kvjax.policy import Policy
from kvjax.score import AvgPool
from kvjax.score.worst_case import WorstCase
from kvjax.select import TopK
from kvjax.select.forced import ForcedTopK
from kvjax.types import Function


def defensive_kv(budget: int | float = 0.2, window: int = 32, pool: Function = AvgPool(5), threshold: float = 0.9) -> Policy:
    """Keep the window, the tokens that cover `threshold` of a head's attention, and the layer's highest worst cases."""
    return Policy(
        score=WorstCase(window=window, pool=pool, threshold=threshold),
        allocate=ForcedFirst(Adaptive(0.0), window=window),
        select=ForcedTopK(window=window, protects=TopK(recent=window)),
        budget=budget,
    )
