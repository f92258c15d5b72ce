"""FastDecode: prompts live in host memory and are attended to there; the device keeps parameters and new tokens.

*FastDecode: High-Throughput GPU-Efficient LLM Serving using Heterogeneous Pipelines*, arXiv 2403.11421, section 3.
Stages: score Recency() · retrieve HostRows() · after the prompt. Exact: queries go to the host, outputs and log denominators
come back and are joined with the attention over what the device holds.
Differs: tokens that are decoded stay on the device; one host, not several nodes. When sequences start, so that the sum of their
lengths stays level, is `experiments.serving.stagger`.

BibTeX:
    @article{he2024fastdecode,
      title={{FastDecode}: High-Throughput {GPU}-Efficient {LLM} Serving using Heterogeneous Pipelines},
      author={He, Jiaao and Zhai, Jidong},
      journal={arXiv preprint arXiv:2403.11421},
      year={2024}
    }

Example:
    out = kvjax.generate(lm, ids, kvjax.methods.fastdecode(), max_new_tokens=32)
"""

from kvjax.policy import Policy
from kvjax.retrieve import HostRows
from kvjax.score import Recency


def fastdecode(budget: int | float = 1) -> Policy:
    """Every prompt on the host, but for its newest tokens.

    Args:
        budget: newest tokens of a prompt that the device holds, at least 1.
    """
    return Policy(score=Recency(), retrieve=HostRows(), budget=budget)
