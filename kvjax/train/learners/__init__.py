"""What of each method is trained, one method a file: implementations of `kvjax.train.Learner`."""

from kvjax.train.learners.duo_attention import DuoAttention
from kvjax.train.learners.trim_kv import TrimKV

__all__ = [
    "DuoAttention", "TrimKV",
]  # fmt: skip
