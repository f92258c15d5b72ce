"""Each query reads the fewest slots whose attention reaches a share tau of the mass (HCAttention)."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float32

from kvjax.kernels.ragged_attention import log_denominator, probabilities
from kvjax.kernels.select_mass import fewest, select_mass
from kvjax.stage import Encoder, Retriever
from kvjax.types import Number

PerQuery = Float32[Array, "b h g t n"]


@struct.dataclass
class QueryHead:
    """Every query head has a set of its own: the literal reading, and the default."""

    def __call__(self, scores: PerQuery, tau: Number) -> tuple[PerQuery, Any]:
        return select_mass(scores, tau)


@struct.dataclass
class GroupUnion:
    """The query heads of a KV head read the union of their sets: one gather for the group."""

    def __call__(self, scores: PerQuery, tau: Number) -> tuple[PerQuery, Any]:
        own, lse = select_mass(scores, tau)
        return jnp.where((own > 0).any(2, keepdims=True), probabilities(scores, lse), 0.0), lse


@struct.dataclass
class GroupMean:
    """The query heads of a KV head read the set of their mean attention."""

    def __call__(self, scores: PerQuery, tau: Number) -> tuple[PerQuery, Any]:
        lse = log_denominator(scores)
        a = probabilities(scores, lse)
        return jnp.where(fewest(a.mean(2, keepdims=True), tau), a, 0.0), lse


@struct.dataclass
class AsTheyAre:
    """Selected probabilities as they are: the output misses up to 1 - tau of its mass, as in the paper."""

    def __call__(self, a: Float32[Array, "b h g t n"]) -> Float32[Array, "b h g t n"]:
        return a


@struct.dataclass
class Renormalised:
    """Selected probabilities divided by their sum."""

    def __call__(self, a: Float32[Array, "b h g t n"]) -> Float32[Array, "b h g t n"]:
        return a / jnp.maximum(a.sum(-1, keepdims=True), jnp.finfo(jnp.float32).tiny)


@struct.dataclass
class Reading:
    """What queries have read so far, by layer and row.

    Attributes:
        picked: float32 [L, B], pairs of query head and slot whose index and weight were used.
        seen: float32 [L, B], pairs there were to choose from.
    """

    picked: Float32[Array, "l b"]
    seen: Float32[Array, "l b"]

    @staticmethod
    def stack(states: list) -> "Reading":
        return jax.tree.map(lambda *x: jnp.concatenate(x, 1), *states)

    @property
    def share(self) -> Float32[Array, "l b"]:
        """Mean share of the slots a query read: the selection ratio of the paper's table 3."""
        return self.picked / jnp.maximum(self.seen, 1.0)

    def crossing_nbytes(self, d: int, queries: int, itemsize: int = 4) -> int:
        """Bytes that crossed to host memory and back by the paper's count with indices: 8 a picked pair, d · itemsize a query head.

        `queries` is the number of query vectors of all layers, rows and steps.
        """
        return int(8 * float(self.picked.sum()) + d * itemsize * queries)


@struct.dataclass
class CumulativeMass(Retriever):
    """y = Σ_{j in Π*} a_j v_j over the fewest slots whose probabilities reach tau.

    Args:
        tau: share of the attention mass, in (0, 1]; 1 reads everything.
        heads: QueryHead() (a set per query head, default), GroupUnion() or GroupMean() (the paper does not say).
        weights: AsTheyAre() (not renormalised, equation 5) or Renormalised().

    Nothing is evicted: the set is chosen anew for every query and layer, and `cache.retrieval` counts what was read.
    Source: HCAttention, arXiv 2507.19823, equations 4 and 5.
    """

    padded: ClassVar[bool] = True
    tau: Number = 0.9
    heads: Any = QueryHead()
    weights: Any = AsTheyAre()

    def __post_init__(self):
        if isinstance(self.tau, int | float) and not 0.0 < self.tau <= 1.0:
            raise ValueError(f"tau is a share of the attention mass, in (0, 1]; got {self.tau}")

    def build(self, rows: list, decided: list, cache: Any, encode: Encoder) -> Reading:
        del cache, encode
        zeros = jnp.zeros((decided[0].count.shape[0], len(rows)), jnp.float32)
        return Reading(picked=zeros, seen=zeros)

    def attend(self, heads: Any, cache: Any, layer: int, *, positions, window: int | None, encode: Encoder, cap: int):
        scores = encode.scores(heads.q, cache, layer, positions=positions, window=window, cap=cap)
        a, lse = self.heads(scores, self.tau)
        out = encode.values.weigh(cache.v, cache.start[layer], self.weights(a))
        note = lambda total, mask: total.at[layer].add(mask.sum((1, 2, 3, 4)).astype(jnp.float32))  # noqa: E731
        read = Reading(picked=note(cache.retrieval.picked, a > 0), seen=note(cache.retrieval.seen, scores > -jnp.inf))
        return out.astype(heads.q.dtype), lse, cache.replace(retrieval=read)
