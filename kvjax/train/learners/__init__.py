"""What of each method is trained, one method a file: implementations of `kvjax.train.Learner`."""

from kvjax.train.learners.attention_gate import AttentionGate
from kvjax.train.learners.dmc import DMC
from kvjax.train.learners.dms import DMS
from kvjax.train.learners.duo_attention import DuoAttention
from kvjax.train.learners.kvzap import KVzap
from kvjax.train.learners.less import LESS
from kvjax.train.learners.lococo import LoCoCo
from kvjax.train.learners.locret import Locret
from kvjax.train.learners.lookahead_kv import LookaheadKV
from kvjax.train.learners.make_each_token_count import MakeEachTokenCount
from kvjax.train.learners.neural_garbage_collection import NeuralGarbageCollection
from kvjax.train.learners.stochastic_kv_routing import StochasticKVRouting
from kvjax.train.learners.trim_kv import TrimKV

__all__ = [
    "AttentionGate", "DMC", "DMS", "DuoAttention", "KVzap", "LESS", "LoCoCo", "Locret", "LookaheadKV", "MakeEachTokenCount",
    "NeuralGarbageCollection", "StochasticKVRouting", "TrimKV",
]  # fmt: skip
