"""Scissorhands: tokens that most often get less than an even share of attention go, many at once.

*Scissorhands: Exploiting the Persistence of Importance Hypothesis for LLM KV Cache Compression at Test Time*, arXiv 2305.17118.
Stages: score SeldomLow(window) · select TopK(recent) · when a head holds `drop` slots above its budget.
Differs: the budget is what is left after a drop, so heads hold budget to budget + drop - 1 slots (the paper's cache of b slots that
drops m is budget b + 1 - m and drop m). The paper's m is b / 2, a drop of about the budget's slots: 256 is that at the default
alone, so give both. The window is 416 queries, the paper's 400 as a multiple of 32. A prompt is cut to the budget at once; every
layer has the same budget (the paper gives later layers more); attention is averaged over the query heads of a KV head.

BibTeX:
    @misc{liu2023scissorhands,
      title={Scissorhands: Exploiting the Persistence of Importance Hypothesis for LLM KV Cache Compression at Test Time},
      author={Zichang Liu and others}, year={2023}, eprint={2305.17118}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.scissorhands(budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.policy import Policy
from kvjax.schedule import WhenFull
from kvjax.score import SeldomLow
from kvjax.select import TopK


def scissorhands(budget: int | float = 256, window: int = 416, recent: int = 10, drop: int = 256) -> Policy:
    """Keep the last `recent` tokens and those seldom below an even share in the last `window` queries (a multiple of 32)."""
    return Policy(score=SeldomLow(window), select=TopK(recent=recent), when=WhenFull(drop), budget=budget)
