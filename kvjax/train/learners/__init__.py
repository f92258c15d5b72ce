"""What of each method is trained, one method a file: implementations of `kvjax.train.Learner`."""

from kvjax.train.learners.dms import DMS
from kvjax.train.learners.duo_attention import DuoAttention
from kvjax.train.learners.kvzap import KVzap
from kvjax.train.learners.locret import Locret
from kvjax.train.learners.make_each_token_count import MakeEachTokenCount
from kvjax.train.learners.neural_garbage_collection import NeuralGarbageCollection
from kvjax.train.learners.stochastic_kv_routing import StochasticKVRouting
from kvjax.train.learners.trim_kv import TrimKV

__all__ = [
    "DMS", "DuoAttention", "KVzap", "Locret", "MakeEachTokenCount", "NeuralGarbageCollection",
    "StochasticKVRouting", "TrimKV",
]  # fmt: skip
