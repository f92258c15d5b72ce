"""What a method does, in a word or three: the leaderboard's colours and its first filter."""

from experiments.method_kinds import KINDS as LONG
from experiments.method_kinds import kind as long_kind
from kvjax.catalogue import MethodInfo

#: In the order of `experiments.method_kinds.KINDS`, then the uncompressed cache.
SHORT = ("evict", "evict by head", "evict while decoding", "merge", "quantise", "retrieve", "sparse prefill", "learned")
FULL = "full cache"
KINDS = (*SHORT, FULL)


def kind(info: MethodInfo) -> str:
    """One of KINDS."""
    return FULL if info.name == "full" else dict(zip(LONG, SHORT, strict=True))[long_kind(info)]
