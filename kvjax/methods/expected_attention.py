"""Expected Attention: what queries still to come should attend to.

*Expected Attention: KV Cache Compression by Estimating Attention from Future Queries Distribution*, arXiv 2510.00636, section 3.
Stages: score ExpectedAttention(future, sinks, eps) · select TopK(sinks) · after the prompt.

BibTeX:
    @misc{devoto2025expectedattention,
      title={Expected Attention: KV Cache Compression by Estimating Attention from Future Queries Distribution},
      author={Alessio Devoto and others}, year={2025}, eprint={2510.00636}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.expected_attention(budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.policy import Policy
from kvjax.score import ExpectedAttention
from kvjax.select import TopK


def expected_attention(budget: int | float = 256, future: int = 512, sinks: int = 4, eps: float = 0.0) -> Policy:
    """Keep the sinks and the keys a Gaussian model of future queries would attend to, weighted by their value norms."""
    return Policy(score=ExpectedAttention(future=future, sinks=sinks, eps=eps), select=TopK(sinks=sinks), budget=budget)
