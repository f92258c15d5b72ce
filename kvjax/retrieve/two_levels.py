"""Each query reads clusters chosen in two steps, large ones first, by bounds that are linear in it (MPCache)."""

from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Float32, Int32, PyTree

from kvjax.attend_context import AttendContext
from kvjax.attention_inputs import AttentionInputs
from kvjax.budget import whole_share
from kvjax.cache.retriever_state import RetrieverState
from kvjax.encoder import Encoder
from kvjax.kernels.gather_attention import gather_attention
from kvjax.kernels.ragged_attention import ragged_attention
from kvjax.protocols import Cache, Decoder
from kvjax.retrieve.page_bounds import page_bounds
from kvjax.retrieve.token_lists import as_list, best
from kvjax.retrieve.top_pages import together
from kvjax.stage import Retriever
from kvjax.types import ALIGN, Number, size_class

Bounds = Float[Array, "b h p d"]


@struct.dataclass
class ClusterState(RetrieverState):
    """Attributes:
    large, small: α max + (1 - α) min of the keys of each cluster, an array for each layer that chooses, () for the others.
    full: whole small clusters each head has; its slots behind them belong to none.
    most: the size of a list.   size, per: slots of a small cluster, small ones in a large one.
    """

    large: tuple[PyTree, ...] | None
    small: tuple[PyTree, ...] | None
    full: Int32[Array, "l b h"]
    most: int = struct.field(pytree_node=False)
    size: int = struct.field(pytree_node=False)
    per: int = struct.field(pytree_node=False)

    @property
    def common(self) -> str:
        layers = [i for i, bounds in enumerate(self.large) if not isinstance(bounds, tuple)]
        return f"clusters of {self.size * self.per} and {self.size} slots in layers {layers}"

    @property
    def raw(self) -> PyTree:
        return self.large, self.small

    def split(self) -> tuple["ClusterState", PyTree]:
        return self.replace(large=None, small=None), (self.large, self.small)

    def joined(self, read: PyTree) -> "ClusterState":
        return self.replace(large=read[0], small=read[1])

    @staticmethod
    def stack(states: list) -> "ClusterState":
        return states[0].replace(
            large=_wide([s.large for s in states]),
            small=_wide([s.small for s in states]),
            full=jnp.concatenate([s.full for s in states], 1),
            most=max(s.most for s in states),
        )


def _wide(states: list[tuple[PyTree, ...]]) -> tuple[PyTree, ...]:
    """Rows of each layer behind one another, padded to as many clusters as any has."""
    most = max(jax.tree.leaves(jax.tree.map(lambda x: x.shape[2], states)), default=0)
    wide = partial(jax.tree.map, lambda x: jnp.pad(x, ((0, 0), (0, 0), (0, most - x.shape[2]), (0, 0))))
    return jax.tree.map(lambda *x: jnp.concatenate(x), *(wide(s) for s in states))


def mixed(low: Bounds, high: Bounds, alpha: Number) -> Bounds:
    """α max + (1 - α) min: u = q · it needs no maximum channel by channel."""
    return (alpha * high.astype(jnp.float32) + (1 - alpha) * low.astype(jnp.float32)).astype(low.dtype)


@partial(jax.jit, static_argnames=("size", "per", "clusters"))
def cluster_bounds(
    k: Float[Array, "s d"],
    start: Int32[Array, "b h"],
    full: Int32[Array, "b h"],
    alpha: Number,
    *,
    size: int,
    per: int,
    clusters: int,
) -> tuple[Float[Array, "b h _ d"], Float[Array, "b h _ d"]]:
    """Bounds of one layer's large clusters and of its small ones; a last large cluster may hold fewer than `per` small ones."""
    low, high = page_bounds(k, start, full, size=size, pages=clusters)
    real = (jnp.arange(clusters) < full[..., None])[..., None]

    def apart(x, none):
        return jnp.where(real, x, none).reshape(*x.shape[:2], -1, per, x.shape[-1])

    least, most = apart(low, jnp.inf).min(3), apart(high, -jnp.inf).max(3)
    some = jnp.isfinite(least)
    return mixed(jnp.where(some, least, 0), jnp.where(some, most, 0), alpha), mixed(low, high, alpha)


def worth(q: Float[Array, "b h g d"], bounds: Bounds) -> Float32[Array, "b h p"]:
    """u = mean_g q_g · (α r_max + (1 - α) r_min)."""
    products = jnp.einsum("bhgd,bhpd->bhgp", q.astype(jnp.float32), bounds.astype(jnp.float32), precision="highest")
    return products.mean(2)


def chosen_clusters(
    large: Float32[Array, "b h P"],
    small: Float32[Array, "b h p"],
    full: Int32[Array, "b h"],
    parts: tuple[Number, Number],
    per: int,
) -> Bool[Array, "b h p"]:
    """The best share of large clusters, and of the small ones in them the best share of all small ones.

    Beside them the first of either kind, and a last large cluster that holds fewer than `per` small ones.
    """
    many = -(-full // per)
    at, held = jnp.arange(large.shape[-1]), many[..., None]
    forced = (at == 0) | ((at == held - 1) & (full % per != 0)[..., None])
    survive = best(large, at < held, whole_share(many, parts[0])) | forced & (at < held)
    at = jnp.arange(small.shape[-1])
    inside = jnp.repeat(survive, per, axis=-1)[..., : small.shape[-1]] & (at < full[..., None])
    return best(small, inside, whole_share(full, parts[1])) | (at == 0) & inside


@struct.dataclass
class TwoLevels(Retriever):
    """Attention over the small clusters of largest u = q · (α r_max + (1 - α) r_min) within the large clusters of largest u.

    Clusters are consecutive slots of what compress left of the prompt. The first cluster, slots behind the last whole small one and
    tokens that came after the prompt are always read, beside the shares.

    Args:
        large, small: slots of a cluster at either level.   parts: shares of all clusters that are kept at either level.
        alpha: weight of r_max; what bounds are made of when a prompt is compressed.
        share: layers that share one choice, the first of them making it; 1: every layer chooses for itself.

    What layers share are numbers of clusters, among the slots that each of them holds; a layer with fewer reads what it has.
    The query heads of a KV head read one list, by the mean of their u. Nothing is evicted while decoding.
    Raises: ValueError for sizes that do not fit each other, a coded pool, shared choices among layers with sliding windows.
    Source: MPCache, arXiv 2501.06807. Differs: bounds are stored mixed, half as many numbers; the release also clusters what is
    generated.
    """

    state: ClassVar[type] = ClusterState
    stepwise: ClassVar[bool] = True
    reads_keys: ClassVar[bool] = True
    still: ClassVar[bool] = True
    large: int = struct.field(pytree_node=False, default=32)
    small: int = struct.field(pytree_node=False, default=16)
    parts: tuple[Number, Number] = (0.5, 0.2)
    alpha: Number = 0.6
    share: int = struct.field(pytree_node=False, default=1)

    def __post_init__(self):
        if self.small < 1 or self.small % ALIGN or self.large % self.small or self.share < 1:
            raise ValueError(
                f"a large cluster holds whole small ones, of a multiple of {ALIGN} slots, and 1 or more layers share; got {self!r}"
            )

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        if self.share > 1 and any(window is not None for window in model.windows):
            raise ValueError("layers with a sliding window read everything and choose nothing to share: use share=1")

    def build(self, rows: list, decided: list, cache: Cache, encode: Encoder) -> ClusterState:
        if not encode.dense:
            raise ValueError(f"TwoLevels reads keys and values as numbers on the device; got {encode}: use Stored()")
        held, per = np.concatenate([np.asarray(d.count) for d in decided], axis=1), self.large // self.small
        full = (held // self.small).astype(np.int32)
        clusters = -(-size_class(int(full.max())) // per) * per
        size = dict(size=self.small, per=per, clusters=clusters)

        def of_layer(i):
            return cluster_bounds(cache.k, cache.start[i], jnp.asarray(full[i]), self.alpha, **size)

        bounds = [of_layer(i) if i % self.share == 0 else ((), ()) for i in range(len(full))]
        large, small = zip(*bounds, strict=True)
        most = min(size_class(self._listed(full)), clusters)
        return ClusterState(large=large, small=small, full=jnp.asarray(full), most=most, size=self.small, per=per)

    def _listed(self, full: Int32[np.ndarray, "l b h"]) -> int:
        """The most small clusters that a query may choose: its share of them, and the first."""
        return min(int(float(self.parts[1]) * full.max() * (1 + 1e-6)) + 1, max(int(full.max()), 1))

    def check_cache(self, cache: Cache) -> None:
        state = cache.retrieval
        if not isinstance(state, ClusterState) or (state.size, state.size * state.per) != (self.small, self.large):
            raise ValueError("the cache has no bounds of its clusters: compress it with this policy")
        if any(isinstance(bounds, tuple) for bounds in state.large[:: self.share]):
            raise ValueError(
                f"the cache has bounds for fewer layers than choose where {self.share} share: compress it with this policy"
            )
        if any(isinstance(x, jax.core.Tracer) for x in (state.full, self.parts[1])):
            return
        listed = self._listed(np.asarray(state.full))
        if listed > state.most:
            raise ValueError(
                f"the cache has lists of {state.most} clusters, a share of {self.parts[1]} may choose {listed}: "
                "compress it with this policy"
            )

    def attend(self, inputs: AttentionInputs, cache: Cache, context: AttendContext):
        layer, q = context.layer, inputs.q
        if context.window is not None:
            return *context.encode.attention(q, cache, context), cache
        if q.shape[3] != 1:
            raise ValueError(f"TwoLevels chooses for one token at a time; got {q.shape[3]}")
        state, size = cache.retrieval, self.small
        full = state.full[layer]
        if layer % self.share == 0:
            u = (worth(q[:, :, :, 0], bounds) for bounds in (state.large[layer], state.small[layer]))
            cache = cache.replace(passed=as_list(chosen_clusters(*u, full, self.parts, state.per), state.most))
        ids, count = cache.passed
        there = jnp.arange(ids.shape[-1]) < count[..., None]
        count = (there & (ids < full[..., None])).sum(-1, dtype=jnp.int32)
        slots = (ids[..., None] * size + jnp.arange(size, dtype=jnp.int32)).reshape(*ids.shape[:2], -1)
        slots = cache.start[layer][..., None] + slots
        read = gather_attention(q, cache.k, cache.v, slots, count * size, bias=cache.bias)
        where = cache.start[layer] + full * size, cache.length[layer] - full * size
        rest = ragged_attention(q, cache.k, cache.v, cache.pos, *where, context.positions, bias=cache.bias)
        return *together(read, rest), cache
