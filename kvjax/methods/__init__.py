"""Published methods, one paper a file: compositions of stages that add no arithmetic of their own."""

from importlib import import_module

from kvjax import catalogue
from kvjax.catalogue import MethodInfo
from kvjax.methods.ada_expected import ada_expected
from kvjax.methods.adakv import adakv
from kvjax.methods.attention_gate import attention_gate
from kvjax.methods.attention_matching import attention_matching
from kvjax.methods.arkv import arkv
from kvjax.methods.asymkv import asymkv
from kvjax.methods.cake import cake
from kvjax.methods.cam import cam
from kvjax.methods.chunkkv import chunkkv
from kvjax.methods.compactor import compactor
from kvjax.methods.compresskv import compresskv
from kvjax.methods.coupled_quantization import coupled_quantization
from kvjax.methods.critical_adakv import critical_adakv
from kvjax.methods.criticalkv import criticalkv
from kvjax.methods.cur import cur
from kvjax.methods.d2o import d2o
from kvjax.methods.dapq import dapq
from kvjax.methods.defensive_kv import defensive_kv
from kvjax.methods.dmc import dmc
from kvjax.methods.dms import dms
from kvjax.methods.duo_attention import duo_attention
from kvjax.methods.expected_attention import expected_attention
from kvjax.methods.fasa import fasa
from kvjax.methods.fastdecode import fastdecode
from kvjax.methods.fastgen import fastgen
from kvjax.methods.finch import finch
from kvjax.methods.full import full
from kvjax.methods.gear import gear
from kvjax.methods.h2o import h2o
from kvjax.methods.hcattention import hcattention
from kvjax.methods.heterocache import heterocache
from kvjax.methods.keepkv import keepkv
from kvjax.methods.infllm import infllm
from kvjax.methods.keydiff import keydiff
from kvjax.methods.keyformer import keyformer
from kvjax.methods.infinigen import infinigen
from kvjax.methods.kivi import kivi
from kvjax.methods.knorm import knorm
from kvjax.methods.kvcompose import kvcompose
from kvjax.methods.kvmerger import kvmerger
from kvjax.methods.kvquant import kvquant
from kvjax.methods.kvtc import kvtc
from kvjax.methods.kvzap import kvzap
from kvjax.methods.kvzip import kvzip
from kvjax.methods.lagkv import lagkv
from kvjax.methods.layer_defensive_kv import layer_defensive_kv
from kvjax.methods.lazy_eviction import lazy_eviction
from kvjax.methods.less import less
from kvjax.methods.local_window import local_window
from kvjax.methods.locret import locret
from kvjax.methods.lococo import lococo
from kvjax.methods.lookahead_kv import lookahead_kv
from kvjax.methods.magicpig import magicpig
from kvjax.methods.make_each_token_count import make_each_token_count
from kvjax.methods.mikv import mikv
from kvjax.methods.minference import minference
from kvjax.methods.mpcache import mpcache
from kvjax.methods.nacl import nacl
from kvjax.methods.neo import neo
from kvjax.methods.neural_garbage_collection import neural_garbage_collection
from kvjax.methods.non_causal_attention import non_causal_attention
from kvjax.methods.omnikv import omnikv
from kvjax.methods.pqcache import pqcache
from kvjax.methods.pyramid_infer import pyramid_infer
from kvjax.methods.pyramid_keydiff import pyramid_keydiff
from kvjax.methods.pyramidkv import pyramidkv
from kvjax.methods.q4_persistent import q4_persistent
from kvjax.methods.qfilters import qfilters
from kvjax.methods.qjl import qjl
from kvjax.methods.quest import quest
from kvjax.methods.random import random
from kvjax.methods.random_attention import random_attention
from kvjax.methods.rkv import rkv
from kvjax.methods.roco import roco
from kvjax.methods.scissorhands import scissorhands
from kvjax.methods.shadowkv import shadowkv
from kvjax.methods.simlayerkv import simlayerkv
from kvjax.methods.sirllm import sirllm
from kvjax.methods.snapkv import snapkv
from kvjax.methods.squeeze_attention import squeeze_attention
from kvjax.methods.streaming_llm import streaming_llm
from kvjax.methods.think import think
from kvjax.methods.tova import tova
from kvjax.methods.triattention import triattention
from kvjax.methods.trim_kv import trim_kv
from kvjax.methods.turboquant import turboquant
from kvjax.methods.zeromerge import zeromerge
from kvjax.methods.zipcache import zipcache

__all__ = [
    "ada_expected", "adakv", "arkv", "asymkv", "attention_gate", "attention_matching", "cake", "cam", "chunkkv", "compactor",
    "compresskv", "coupled_quantization", "critical_adakv", "criticalkv", "cur", "d2o", "dapq", "defensive_kv", "dmc", "dms",
    "duo_attention", "expected_attention", "fasa", "fastdecode", "fastgen", "finch", "full", "gear", "h2o", "hcattention",
    "heterocache", "infinigen", "infllm", "keepkv", "keydiff", "keyformer", "kivi", "knorm", "kvcompose", "kvmerger", "kvquant",
    "kvtc", "kvzap", "kvzip", "lagkv", "layer_defensive_kv", "lazy_eviction", "less", "local_window", "lococo", "locret",
    "lookahead_kv", "magicpig", "make_each_token_count", "mikv", "minference", "mpcache", "nacl", "neo",
    "neural_garbage_collection", "non_causal_attention", "omnikv", "pqcache", "pyramid_infer", "pyramid_keydiff", "pyramidkv",
    "q4_persistent", "qfilters", "qjl", "quest", "random", "random_attention", "rkv", "roco", "scissorhands", "shadowkv",
    "simlayerkv", "sirllm", "snapkv", "squeeze_attention", "streaming_llm", "think", "tova", "triattention", "trim_kv",
    "turboquant", "zeromerge", "zipcache",
]  # fmt: skip


def info(name: str, *, head_dim: int = 128, dtype: str = "bfloat16") -> MethodInfo:
    """Paper, stages, needs, when it acts, and bytes a slot: see `kvjax.catalogue.MethodInfo`.

    Args:
        name: one of `names()`.   head_dim, dtype: of the model that bytes of a slot are counted for.

    Raises:
        ValueError: no method of that name.
    """
    if name not in names():
        raise ValueError(f"no method is called {name!r}; there are {', '.join(names())}")
    return catalogue.info(import_module(f"kvjax.methods.{name}"), head_dim=head_dim, dtype=dtype)


def names() -> list[str]:
    """Every method, by its file name; `getattr(kvjax.methods, name)` builds it."""
    return list(__all__)
