"""NEO: some requests keep their cache in host memory and are attended to there, the others on the device.

*NEO: Saving GPU Memory Crisis with CPU Offloading for Online LLM Inference*, arXiv 2411.01142, section 3.
Stages: score Recency() · allocate ShortRowsWhole(longest) · retrieve HostRows() · after the prompt. Exact: the host's part and the
device's are joined by log-sum-exp.
Differs: which requests go to the host is told by their length; the paper's scheduler decides it anew at every iteration, by the
times in `experiments.serving.overlap`. Both parts of a step run in one program, not in two overlapping batches; tokens that are
decoded stay on the device.

BibTeX:
    @inproceedings{jiang2025neo,
      title={{NEO}: Saving {GPU} Memory Crisis with {CPU} Offloading for Online {LLM} Inference},
      author={Jiang, Xuanlin and Zhou, Yang and Cao, Shiyi and Stoica, Ion and Yu, Minlan},
      booktitle={Proceedings of Machine Learning and Systems},
      year={2025}
    }

Example:
    out = kvjax.generate(lm, texts, kvjax.methods.neo(longest=100), max_new_tokens=32)
"""

from kvjax.allocate import ShortRowsWhole
from kvjax.policy import Policy
from kvjax.retrieve import HostRows
from kvjax.score import Recency


def neo(longest: int = 1024, budget: int | float = 1) -> Policy:
    """Prompts of more than `longest` tokens on the host, the others on the device.

    Args:
        longest: tokens of the longest prompt that the device holds.
        budget: newest tokens of a longer one that it holds as well, at least 1.
    """
    return Policy(score=Recency(), allocate=ShortRowsWhole(longest=longest), retrieve=HostRows(), budget=budget)
