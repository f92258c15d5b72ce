"""R-KV: reasoning repeats itself, so keep what is attended to and not repeated later.

*R-KV: Redundancy-aware KV Cache Compression for Reasoning Models*, arXiv 2505.24133.
Stages: score Redundancy(window, weight) · select TopK(recent=window) · every `interval` steps.
Differs: a token without a near duplicate forgives nothing (the release forgives token 0: pass `forgive=LastOrFirst()`); the weight
is the README's (its code has 0.07); evictions are counted from the prompt's end.

BibTeX:
    @misc{cai2025rkv, title={R-KV: Redundancy-aware KV Cache Compression for Reasoning Models},
      author={Zefan Cai and others}, year={2025}, eprint={2505.24133}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.rkv(budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.policy import Policy
from kvjax.schedule import Every
from kvjax.score import MaxPool, PromptFirst, Redundancy
from kvjax.score.redundancy import LastDuplicate
from kvjax.select import TopK
from kvjax.types import Function


def rkv(
    budget: int | float = 1024, window: int = 8, weight: float = 0.1, tau: float = 0.5, interval: int = 128,
    pool: Function = MaxPool(7),
    forgive: Function = LastDuplicate(), pin_prompt: bool = False,
) -> Policy:  # fmt: skip
    """Keep the window and the tokens of highest weight · attention - (1 - weight) · redundancy.

    Args:
        pin_prompt: whether the prompt stays before all that is decoded; that takes a budget above its length, or only the window is
            kept of decoded tokens.
    """
    score = Redundancy(window=window, weight=weight, tau=tau, pool=pool, forgive=forgive)
    score = PromptFirst(score) if pin_prompt else score
    return Policy(score=score, select=TopK(recent=window), when=Every(interval), budget=budget)
