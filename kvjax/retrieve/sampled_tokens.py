"""Attention is sampled: the keys whose hashes meet the query's, in host memory, stand for all (MagicPIG)."""

from collections.abc import Sequence
from functools import cache as once
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Float32, PyTree, UInt16

from kvjax.attend_context import AttendContext
from kvjax.attention_inputs import AttentionInputs
from kvjax.cache.counter import Counter
from kvjax.cache.retriever_state import RetrieverState
from kvjax.encoder import Encoder
from kvjax.join import joined
from kvjax.placement import OnHost
from kvjax.placement.on_host import _HOST
from kvjax.placement.sampled_attention import SLOTS, SampledPart, sampled_attention
from kvjax.protocols import Cache, Decoder
from kvjax.ranges import Whole
from kvjax.retrieve.elsewhere import check_homes, check_whole, rows_together
from kvjax.stage import Retriever
from kvjax.types import Number, size_class


@once
def planes(seed: int, bits: int, tables: int, d: int) -> Float32[np.ndarray, "tables bits d"]:
    """Normal vectors of random planes, N(0, 1)."""
    return np.random.Generator(np.random.PCG64(seed)).standard_normal((tables, bits, d)).astype(np.float32)


def hashes(x: Float[Array, "*a d"], normals: Float32[np.ndarray, "tables bits d"]) -> UInt16[Array, "*a tables"]:
    """Σ_i 2^i [w_i · x > 0] for every table: SimHash."""
    tables, bits, d = normals.shape
    side = jnp.matmul(x.astype(jnp.float32), jnp.asarray(normals.reshape(-1, d)).T, precision="highest") > 0
    weights = jnp.asarray(1 << np.arange(bits), jnp.uint16)
    return (side.reshape(*x.shape[:-1], tables, bits) * weights).sum(-1, dtype=jnp.uint16)


@struct.dataclass
class SampledState(RetrieverState):
    """Attributes:
    parts: of each layer that has slots on the host, () for the others.   mean: the mean of those keys, on the device, likewise.
    sampled: pairs of a query head and a token that met so far, all layers.   made_for: bits, tables and seed of the hashes.
    """

    parts: tuple[PyTree, ...] | None
    mean: tuple[PyTree, ...]
    sampled: Counter
    made_for: tuple[int, int, int] = struct.field(pytree_node=False)

    @property
    def elsewhere(self) -> PyTree:
        counts = [np.asarray(part.held).sum(-1, dtype=np.int32) if part else None for part in self.parts]
        none = np.zeros_like(next(count for count in counts if count is not None))
        return np.stack([none if count is None else count for count in counts])

    @property
    def common(self) -> str:
        return f"(bits, tables, seed) = {self.made_for}"

    @property
    def raw(self) -> PyTree:
        return [(part.k, part.v) for part in self.parts if part]

    def split(self) -> tuple["SampledState", PyTree]:
        return self.replace(parts=None), self.parts

    def joined(self, read: PyTree) -> "SampledState":
        return self.replace(parts=read)

    @staticmethod
    def stack(states: list) -> "SampledState":
        return states[0].replace(
            parts=tuple(_together(layers) for layers in zip(*(s.parts for s in states), strict=True)),
            mean=tuple(_joined(layers) for layers in zip(*(s.mean for s in states), strict=True)),
            sampled=Counter.stack([s.sampled for s in states]),
        )


def _joined(means: Sequence[PyTree]) -> PyTree:
    """One layer of several rows, () where one of them has no mean."""
    return () if any(isinstance(mean, tuple) for mean in means) else jnp.concatenate(means)


def _together(several: Sequence[PyTree]) -> PyTree:
    """One layer of several rows, tokens padded to the longest prompt, on the host; () where one of them has none there.

    Raises:
        ValueError: a layer that is whole in one row and has slots on the host in another.
    """
    if not all(several):
        if any(np.asarray(part.held).any() for part in several if part):
            raise ValueError("a layer that one cache has whole is sampled in another: compress all of them with one policy")
        return ()
    here = jax.device_put([tuple(part) for part in several], jax.memory.Space.Device)
    return SampledPart(*jax.device_put([rows_together(kind) for kind in zip(*here, strict=True)], _HOST))


@struct.dataclass
class SampledTokens(Retriever):
    """Attention over {sinks, S, the last tokens of the prompt, what came after it}, S the tokens whose hashes meet the query's.

    A hash is K signs of projections on random planes, and there are L of them; S has what meets in two or more. The logits of S are
    q·k_j/√d - log(u_j + 10⁻⁴), u_j the chance that j is in S, so that the softmax stands for that over all tokens. Keys are hashed
    less their mean over the prompt, which no softmax sees. Every query head samples for itself, on the host, and the two parts are
    joined by log-sum-exp.

    Args:
        bits: K, at most 16.   tables: L.   seed: of the planes.
        sinks: first tokens that stay on the device.   local: last tokens of the prompt that do.
        dense: layers that stay whole, on the device; those that the model lacks mean nothing.

    Layers with a sliding window keep everything. Needs the whole prompt: nothing may be evicted.
    Raises: ValueError for numbers out of range and for a budget that evicts.
    Source: MagicPIG, arXiv 2410.16179, section 4. Differs: one set of planes for all heads and layers, where the release draws one
    for each KV head, and anew after every sixteen layers; hashes are compared, no tables are built.
    """

    state: ClassVar[type] = SampledState
    stepwise: ClassVar[bool] = True
    reads_keys: ClassVar[bool] = True
    reads_prompt: ClassVar[bool] = True
    numbered: ClassVar[bool] = True
    bits: int = struct.field(pytree_node=False, default=10)
    tables: int = struct.field(pytree_node=False, default=150)
    seed: int = struct.field(pytree_node=False, default=0)
    sinks: Whole = struct.field(pytree_node=False, default=4)
    local: Whole = struct.field(pytree_node=False, default=64)
    dense: tuple[int, ...] = struct.field(pytree_node=False, default=(0, 16, 32, 48))

    def __post_init__(self):
        if not 1 <= self.bits <= 16 or self.tables < 2:
            raise ValueError(f"a hash has 1 to 16 bits, and there are 2 tables or more; got {self!r}")

    @property
    def made_for(self) -> tuple[int, int, int]:
        """What hashes of keys and of queries must share."""
        return self.bits, self.tables, self.seed

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        if mean_budget < length:
            raise ValueError(f"SampledTokens stand for a whole prompt: leave the budget at 1.0; got {mean_budget} of {length}")
        if all(self._whole(i, window) for i, window in enumerate(model.windows)):
            raise ValueError(f"dense={self.dense} are all {model.layers} layers of the model: leave one to sample in")

    def _whole(self, layer: int, window: int | None) -> bool:
        return layer in self.dense or window is not None

    def away(self, rows: list, decided: list, model: Decoder) -> list[Bool[Array, "l 1 h _"]]:
        some, found = jnp.array([not self._whole(i, window) for i, window in enumerate(model.windows)]), []
        for row, d in zip(rows, decided, strict=True):
            at, last = jnp.arange(d.keep.shape[-1]), int(row.length[0]) - self.local
            found.append(d.keep & (at >= self.sinks) & (at < last) & some[:, None, None, None])
        return found

    def build(self, rows: list, decided: list, cache: Cache, encode: Encoder) -> SampledState:
        check_homes("SampledTokens", OnHost(), encode)
        check_whole("SampledTokens", rows, decided)
        parts, mean = [], []
        some = np.any([np.asarray(d.away.any((1, 2, 3))) for d in decided], 0)
        some = some | (~some.any() & ~np.isin(np.arange(len(some)), self.dense))  # short prompts alone
        for layer, there in enumerate(some):
            made = [self._part(row, layer) for row in rows] if there else []
            parts.append(_together([part for part, _ in made]) if made else ())
            mean.append(jnp.concatenate([m for _, m in made]) if made else ())
        sampled = Counter.zeros(len(rows))
        return SampledState(parts=tuple(parts), mean=tuple(mean), sampled=sampled, made_for=self.made_for)

    def _part(self, row: Number, layer: int) -> tuple[SampledPart, Float32[Array, "1 h d"]]:
        """A row's keys and values between sinks and last tokens, and the mean of those keys."""
        count = max(0, int(row.length[0]) - self.local - self.sinks)
        size = -(-size_class(count) // SLOTS) * SLOTS

        def between(x: Array) -> Array:
            x = x[:, :, self.sinks : self.sinks + size]
            return jnp.pad(x, ((0, 0), (0, 0), (0, size - x.shape[2]), (0, 0)))

        k, v = between(row.k[layer]), between(row.v[layer])
        held = jnp.broadcast_to(jnp.arange(size) < count, k.shape[:3])
        total = jnp.where(held[..., None], k, jnp.zeros((), k.dtype)).astype(jnp.float32).sum(2)
        mean = total / max(count, 1)
        k = (k.astype(jnp.float32) - mean[:, :, None]).astype(k.dtype)
        return SampledPart(k, v, held, hashes(k, self._planes(k.shape[-1]))), mean

    def _planes(self, d: int) -> Float32[np.ndarray, "tables bits d"]:
        return planes(self.seed, self.bits, self.tables, d)

    def check_cache(self, cache: Cache) -> None:
        if not isinstance(state := cache.retrieval, SampledState) or state.made_for != self.made_for:
            raise ValueError("the cache has no hashes of these bits, tables and seed: compress it with this policy")

    def attend(self, inputs: AttentionInputs, cache: Cache, context: AttendContext):
        q, near = inputs.q, context.encode.attention(inputs.q, cache, context)
        state, part = cache.retrieval, cache.retrieval.parts[context.layer]
        if not part or context.window is not None:
            return *near, cache
        if q.shape[3] != 1:
            raise ValueError(f"SampledTokens samples for one token at a time; got {q.shape[3]}")
        out, lse, met = sampled_attention(part, q, hashes(q, self._planes(q.shape[-1])), bits=self.bits)
        shift = jnp.einsum("bhgtd,bhd->bhgt", q.astype(jnp.float32), state.mean[context.layer], precision="highest")
        both = joined([near, (out, lse + shift / np.float32(np.sqrt(q.shape[-1])))])
        met = jnp.where(context.real[:, 0], met, 0)
        return *both, cache.replace(retrieval=state.replace(sampled=state.sampled.plus(met)))
