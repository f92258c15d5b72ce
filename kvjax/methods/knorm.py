"""L2-norm strategy: keys of small norm are kept.

*A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression*, arXiv 2406.11430.
Stages: score KeyNorm · after the prompt. Equal tokens tie in the first layer, where rotation does not change a norm.
Differs: all layers are cut; the release's examples leave the first, or the first two, whole:
`.replace(allocate=kvjax.allocate.WholeLayers(layers=(0, 1)))`. Shares of a prompt are rounded down, there up.

BibTeX:
    @misc{devoto2024knorm, title={A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression},
      author={Alessio Devoto and others}, year={2024}, eprint={2406.11430}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.knorm(budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.policy import Policy
from kvjax.score import KeyNorm


def knorm(budget: int | float = 256) -> Policy:
    """Keep the `budget` keys of smallest norm in each head."""
    return Policy(score=KeyNorm(), budget=budget)
