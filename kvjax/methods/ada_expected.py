"""Expected Attention's scores under head-adaptive budgets.

The pairing the Expected Attention paper (arXiv 2510.00636) evaluates beside uniform budgets.
Stages: score ExpectedAttention(eps) · allocate Adaptive(alpha) · select TopK(sinks) · after the prompt.

BibTeX:
    @misc{devoto2025expected,
      title={Expected Attention: {KV} Cache Compression by Estimating Attention from Future Queries Distribution},
      author={Alessio Devoto and others}, year={2025}, eprint={2510.00636}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.ada_expected(budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.allocate import Adaptive
from kvjax.methods.expected_attention import expected_attention
from kvjax.policy import Policy


def ada_expected(budget: int | float = 256, future: int = 512, eps: float = 0.02, alpha: float = 0.2) -> Policy:
    """Keep the slots of highest expected attention of a layer, whichever heads they fall in."""
    return expected_attention(budget, future=future, eps=eps).replace(allocate=Adaptive(alpha=alpha))
