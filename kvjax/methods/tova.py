"""TOVA: what the last query attends to (token omission via attention).

*Transformers are Multi-State RNNs*, arXiv 2401.06104, section 3.2.
Stages: score WindowAttention(1, no pooling, mean over all heads) · every step. Nothing is protected: the newest token may
evict itself, as in the release. The prompt is cut in one shot from its last row, which is noisier than feeding it in chunks.

BibTeX:
    @misc{oren2024tova, title={Transformers are Multi-State RNNs},
      author={Matanel Oren and others}, year={2024}, eprint={2401.06104}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.tova(budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.policy import Policy
from kvjax.schedule import Every
from kvjax.score import AllMean, NoPool, WindowAttention
from kvjax.select import TopK


def tova(budget: int | float = 256, protect_last: bool = False) -> Policy:
    """Keep what the last query attends to most, the same for all heads; `protect_last` keeps the newest token, as a port does."""
    score = WindowAttention(window=1, pool=NoPool(), heads=AllMean())
    return Policy(score=score, select=TopK(recent=int(protect_last)), when=Every(1), budget=budget)
