"""MPCache: what the end of the prompt hardly looks at goes once, and each query reads clusters of the rest, chosen in two steps.

*MPCache: MPC-Friendly KV Cache Eviction for Efficient Private LLM Inference*, NeurIPS 2025, arXiv 2501.06807.
Stages: score LookOnce(window) · select TopK, or AtLeast(tau) · retrieve TwoLevels(large, small, parts, alpha, share) · after the
prompt.
Differs: a budget replaces the threshold unless `tau` is given, which is specific to a data set; at most `window` queries look; the
query heads of a KV head read one list, by the mean of their bounds; generated tokens are always
read (in the release they join clusters); sharing between layers, which the release lacks, is off.

BibTeX:
    @inproceedings{zeng2025mpcache, title={MPCache: MPC-Friendly KV Cache Eviction for Efficient Private LLM Inference},
      author={Zeng, Wenxuan and Dong, Ye and Zhou, Jinjin and Ma, Junming and Tan, Jin and Wang, Runsheng and Li, Meng},
      booktitle={Advances in Neural Information Processing Systems}, year={2025}, note={arXiv:2501.06807}}

Example:
    policy = kvjax.methods.mpcache(budget=0.3)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.allocate import AllHeld, Uniform
from kvjax.policy import Policy
from kvjax.retrieve import TwoLevels
from kvjax.score import LookOnce
from kvjax.select import AtLeast, TopK


def mpcache(
    budget: int | float = 0.3, tau: float | None = None, large: int = 32, small: int = 16, parts: tuple[float, float] = (0.5, 0.2),
    alpha: float = 0.6, share: int = 1, window: int = 512,
) -> Policy:  # fmt: skip
    """Keep the tokens that some late query looks at, the same for all heads of a layer; read a fifth of their clusters a query.

    Args:
        tau: keep what gets at least this probability, as many as there are; the budget is not asked then.
        large, small: slots of a cluster at either level.   parts: shares of all clusters kept at either level.
        alpha: weight of the greatest keys in a cluster's bound.   share: layers that share one choice.
        window: most queries of the prompt's end that look.
    """
    score, retrieve = LookOnce(window), TwoLevels(large=large, small=small, parts=parts, alpha=alpha, share=share)
    if tau is None:
        return Policy(score=score, allocate=Uniform(), select=TopK(), retrieve=retrieve, budget=budget)
    return Policy(score=score, allocate=AllHeld(), select=AtLeast(tau=tau), retrieve=retrieve)
