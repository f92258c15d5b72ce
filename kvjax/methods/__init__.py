"""Published methods, one paper a file: compositions of stages that add no arithmetic of their own."""

from kvjax.methods.ada_expected import ada_expected
from kvjax.methods.adakv import adakv
from kvjax.methods.cam import cam
from kvjax.methods.chunkkv import chunkkv
from kvjax.methods.compactor import compactor
from kvjax.methods.compresskv import compresskv
from kvjax.methods.critical_adakv import critical_adakv
from kvjax.methods.criticalkv import criticalkv
from kvjax.methods.cur import cur
from kvjax.methods.d2o import d2o
from kvjax.methods.expected_attention import expected_attention
from kvjax.methods.full import full
from kvjax.methods.h2o import h2o
from kvjax.methods.hcattention import hcattention
from kvjax.methods.heterocache import heterocache
from kvjax.methods.keydiff import keydiff
from kvjax.methods.knorm import knorm
from kvjax.methods.lagkv import lagkv
from kvjax.methods.local_window import local_window
from kvjax.methods.non_causal_attention import non_causal_attention
from kvjax.methods.pyramid_keydiff import pyramid_keydiff
from kvjax.methods.pyramidkv import pyramidkv
from kvjax.methods.qfilters import qfilters
from kvjax.methods.quest import quest
from kvjax.methods.random_attention import random_attention
from kvjax.methods.rkv import rkv
from kvjax.methods.snapkv import snapkv
from kvjax.methods.streaming_llm import streaming_llm
from kvjax.methods.tova import tova
from kvjax.methods.triattention import triattention

__all__ = [
    "ada_expected",
    "adakv",
    "cam",
    "chunkkv",
    "compactor",
    "compresskv",
    "critical_adakv",
    "criticalkv",
    "cur",
    "d2o",
    "expected_attention",
    "full",
    "h2o",
    "hcattention",
    "heterocache",
    "keydiff",
    "knorm",
    "lagkv",
    "local_window",
    "non_causal_attention",
    "pyramid_keydiff",
    "pyramidkv",
    "qfilters",
    "quest",
    "random_attention",
    "rkv",
    "snapkv",
    "streaming_llm",
    "tova",
    "triattention",
]


def names() -> list[str]:
    """Every method, by its file name; `getattr(kvjax.methods, name)` builds it."""
    return list(__all__)
