"""Each query reads the fewest slots whose attention reaches a share tau of the mass (HCAttention)."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float32, PyTree

from kvjax.attend_context import AttendContext
from kvjax.attention_inputs import AttentionInputs
from kvjax.cache.retriever_state import RetrieverState
from kvjax.encoder import Encoder
from kvjax.kernels.ragged_attention import log_denominator, probabilities
from kvjax.kernels.select_top_p import select_top_p, top_p_mask
from kvjax.protocols import Cache
from kvjax.stage import Retriever
from kvjax.types import Function, Number

PerQuery = Float32[Array, "b h g t n"]
Pairs = Bool[Array, "b h g t n"]


@struct.dataclass
class SetPerQueryHead:
    """Every query head has a set of its own: the literal reading, and the default."""

    def __call__(self, scores: PerQuery, tau: Number) -> tuple[PerQuery, PyTree]:
        return select_top_p(scores, tau)


@struct.dataclass
class UnionOfGroup:
    """The query heads of a KV head read the union of their sets: one gather for the group."""

    def __call__(self, scores: PerQuery, tau: Number) -> tuple[PerQuery, PyTree]:
        own, lse = select_top_p(scores, tau)
        return jnp.where((own > 0).any(2, keepdims=True), probabilities(scores, lse), 0.0), lse


@struct.dataclass
class SetOfGroupMean:
    """The query heads of a KV head read the set of their mean attention."""

    def __call__(self, scores: PerQuery, tau: Number) -> tuple[PerQuery, PyTree]:
        lse = log_denominator(scores)
        a = probabilities(scores, lse)
        return jnp.where(top_p_mask(a.mean(2, keepdims=True), tau), a, 0.0), lse


@struct.dataclass
class Unnormalized:
    """Selected probabilities as they are: the output misses up to 1 - tau of its mass, as in the paper."""

    def __call__(self, a: Float32[Array, "b h g t n"]) -> Float32[Array, "b h g t n"]:
        return a


@struct.dataclass
class Renormalized:
    """Selected probabilities divided by their sum."""

    def __call__(self, a: Float32[Array, "b h g t n"]) -> Float32[Array, "b h g t n"]:
        return a / jnp.maximum(a.sum(-1, keepdims=True), jnp.finfo(jnp.float32).tiny)


@struct.dataclass
class Reading(RetrieverState):
    """What queries of tokens have read so far, by layer and row.

    Attributes:
        picked: float32 [L, B], pairs of query head and slot whose index and weight were used.
        seen: float32 [L, B], pairs there were to choose from.
    """

    picked: Float32[Array, "l b"]
    seen: Float32[Array, "l b"]

    @staticmethod
    def stack(states: list) -> "Reading":
        return jax.tree.map(lambda *x: jnp.concatenate(x, 1), *states)

    def noted(self, layer: int, *, picked: Pairs, there: Pairs, real: Bool[Array, "b t"]) -> "Reading":
        """With one more reading of a layer: pairs picked, and pairs there were, of the queries that are real."""

        def counted(pairs: Pairs) -> Float32[Array, " b"]:
            return (pairs & real[:, None, None, :, None]).sum((1, 2, 3, 4)).astype(jnp.float32)

        return Reading(picked=self.picked.at[layer].add(counted(picked)), seen=self.seen.at[layer].add(counted(there)))

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
class TopP(Retriever):
    """y = Σ_{j in Π*} a_j v_j over the fewest slots whose probabilities reach tau.

    Args:
        tau: share of the attention mass, in (0, 1]; 1 reads everything.
        heads: SetPerQueryHead() (a set per query head, default), UnionOfGroup() or SetOfGroupMean() (the paper does not say).
        weights: Unnormalized() (not renormalised, equation 5) or Renormalized().

    Nothing is evicted: the set is chosen anew for every query and layer, and `cache.retrieval` counts what was read.
    Source: HCAttention, arXiv 2507.19823, equations 4 and 5.
    """

    state: ClassVar[type] = Reading
    padded: ClassVar[bool] = True
    tau: Number = 0.9
    heads: Function = SetPerQueryHead()
    weights: Function = Unnormalized()

    def __post_init__(self):
        if isinstance(self.tau, int | float) and not 0.0 < self.tau <= 1.0:
            raise ValueError(f"tau is a share of the attention mass, in (0, 1]; got {self.tau}")

    def build(self, rows: list, decided: list, cache: Cache, encode: Encoder) -> Reading:
        del cache, encode
        zeros = jnp.zeros((decided[0].count.shape[0], len(rows)), jnp.float32)
        return Reading(picked=zeros, seen=zeros)

    def check_cache(self, cache: Cache) -> None:
        if not isinstance(cache.retrieval, Reading):
            raise ValueError("the cache does not count what queries read: compress it with this policy")

    def attend(self, inputs: AttentionInputs, cache: Cache, context: AttendContext):
        scores = context.encode.scores(inputs.q, cache, context)
        a, lse = self.heads(scores, self.tau)
        out = context.encode.weighted_sum(cache, context, self.weights(a), inputs.q.shape[-1])
        read = cache.retrieval.noted(context.layer, picked=a > 0, there=scores > -jnp.inf, real=context.real)
        return out.astype(inputs.q.dtype), lse, cache.replace(retrieval=read)
