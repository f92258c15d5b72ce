"""When the attention of a pivot has moved, its satellites are given the tokens it looks at now (HeteroCache)."""

from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Int32, PyTree, UInt8

from kvjax.attend_context import AttendContext
from kvjax.attention_inputs import AttentionInputs
from kvjax.encoder import Encoder
from kvjax.evidence import Need, WindowQueries
from kvjax.kernels.select_top import select_top
from kvjax.placement import OnDevice, OnHost
from kvjax.placement.by_callback import ByCallback
from kvjax.placement.lists import listed
from kvjax.protocols import Cache, Decoder
from kvjax.retrieve.clusters import Clusters
from kvjax.retrieve.pivot_state import PivotState, as_bits, check_made_for, empty, overlaps
from kvjax.retrieve.satellites import ask, begin, deliver
from kvjax.score.heads import GroupMax
from kvjax.score.last_query import focus
from kvjax.score.pool import AvgPool
from kvjax.select.probable import most_probable, probability_keys
from kvjax.stage import Retriever
from kvjax.types import Function, Number


@struct.dataclass
class Tumbling:
    """Windows of w steps, one after the other: the released code's reading, and w times fewer comparisons."""

    def ends(self, steps: Int32[Array, " b"], w: int) -> Bool[Array, " b"]:
        return steps % w == 0


@struct.dataclass
class Sliding:
    """The last w steps at every step: the paper's wording. Older rows are compared with the newest reference too."""

    def ends(self, steps: Int32[Array, " b"], w: int) -> Bool[Array, " b"]:
        return steps >= w


@struct.dataclass
class PivotRefresh(Retriever):
    """Satellites fetch topk(s_p, L_m) where median_w(|I_t ∩ I_ref| / L_base) < theta for their pivot p.

    s_p = max_g pool(softmax(q_p k_p / sqrt(d))) over the pivot's prompt keys alone, I = topk(s_p, L_base); I_ref is that of the
    last prompt query, after a refresh that of the query which caused it. Attention reads every slot held, and hands out a pivot's
    probabilities by the way (`Encoder.attention_with_weights`): I_t is chosen with every step, a window's end only compares.

    *Timing.* The window that ends with step t decides after its attention. What it asks for is fetched and written after the
    attention of step t + 1, and read from step t + 2 on: with a home behind callbacks a thread of the host reads it meanwhile,
    begun at the end of step t and waited for at the end of step t + 1. A decision that falls on step t + 1 is taken after that
    arrival: a region never mixes two fetches.

    Args:
        clusters: who watches whom; heads outside pivots and satellites cost nothing.
        w: queries of a window.   window: Tumbling() (default) or Sliding().
        theta: threshold of the median overlap; 0 never fetches, above 1 every window does.
        pool, heads: of the scores.   host: home of the satellites' whole prompts.
        traced: windows whose medians are kept for reports.
        origin: which model and calibration the clusters came from.

    Decided row by row; the released code averages a batch. No window is judged where L_base is 0 or the pivot holds no more than
    L_base slots. L_base is floor((mean_budget·N - slots of full heads) / |C|), the paper's under `RoleBudgets`. A layer's sliding
    window is not applied to the monitored scores.
    Needs a cache whose prompt slots keep their place: nothing may be evicted while decoding.
    Raises: ValueError for clusters of another model, a window below one, a policy that evicts while decoding.
    Source: HeteroCache, arXiv 2601.13684, section 4.3, equations 9 and 10. Differs: a satellite gets the best L_m tokens of its
    pivot; the released code the earliest L_m of the widest satellite's.
    """

    state: ClassVar[type] = PivotState
    stepwise: ClassVar[bool] = True
    reads_keys: ClassVar[bool] = True
    still: ClassVar[bool] = True
    reads_prompt: ClassVar[bool] = True
    numbered: ClassVar[bool] = True
    clusters: Clusters = struct.field(pytree_node=False, repr=False)
    w: int = struct.field(pytree_node=False, default=5)
    theta: Number = 0.5
    pool: Function = AvgPool(5)
    heads: Function = GroupMax()
    window: Tumbling | Sliding = Tumbling()
    host: OnDevice = OnHost()
    traced: int = struct.field(pytree_node=False, default=32)
    origin: str = struct.field(pytree_node=False, default="")

    def __post_init__(self):
        if self.w < 1:
            raise ValueError(f"a drift window is at least 1 query; got w={self.w}")

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({WindowQueries(1)})

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        if self.clusters.shape != (model.layers, model.heads):
            raise ValueError(
                f"PivotRefresh has clusters of {self.clusters.shape} layers and KV heads, the model {(model.layers, model.heads)}: "
                "use the artefact of this model, or calibrate it"
            )

    def build(self, rows: list, decided: list, cache: Cache, encode: Encoder) -> PyTree:
        if not encode.movable or jax.tree.leaves(cache.fitted):
            raise ValueError(f"PivotRefresh rewrites single slots: it needs codecs without windows, pages or fits; got {encode}")
        pivots, satellites = self.clusters.pivots, self.clusters.satellites
        if not pivots:
            return ()
        if (
            not self.host.on_device
            and not encode.placement.on_device
            and isinstance(self.host, ByCallback) != isinstance(encode.placement, ByCallback)
        ):
            raise ValueError(
                f"one program cannot hold both host arrays and ordered callbacks: values are {encode.placement}, the satellites' "
                f"prompts {self.host}; give both the same home"
            )
        lengths = [int(row.length[0]) for row in rows]
        n, counts = max(row.k[0].shape[2] for row in rows), [np.asarray(d.count)[:, 0] for d in decided]

        def whole(x):
            return jnp.asarray(np.array(x), jnp.int32)

        state = empty(
            rows[0].k[0][0], host=self.host, slots=len(satellites) * sum(lengths), traced=self.traced,
            away=whole([self.clusters.satellite * (n - count) for n, count in zip(lengths, counts, strict=True)]),
            p=len(pivots), m=len(satellites), n=n, w=self.w,
        )  # fmt: skip
        base = [self._base(count, d.mean_budget) for count, d in zip(counts, decided, strict=True)]
        state = state.replace(
            watched=self.clusters.tables,
            base=whole(base),
            room=whole([[count[layer, h] for layer, h, _ in satellites] for count in counts]),
            held=whole([[count[layer, h] for layer, h in pivots] for count in counts]),
            offset=whole(_offsets(lengths, len(satellites))),
            reference=jnp.stack(
                [self._first(row, d, b, state.prompt_slots) for row, d, b in zip(rows, decided, base, strict=True)]
            ),
        )
        return self._save(state, rows)

    def _base(self, count: np.ndarray, mean_budget: int) -> int:
        """L_base of one row."""
        full = self.clusters.full
        return max(0, (mean_budget * full.size - int(count[full].sum())) // max(int((~full).sum()), 1))

    def _first(self, row: Number, decided: PyTree, base: int, n: int) -> UInt8[Array, "p y"]:
        """I_ref of every pivot after the prompt."""
        least, found = jnp.asarray([base], jnp.int32), []
        for at, h in self.clusters.pivots:
            q, k, keep = row.evidence[at].window_queries(1)[0], row.k[at][0], decided.keep[at][0]
            found.append(_first_reference(q, k, keep, np.int32(h), base=least, pool=self.pool, heads=self.heads, size=n))
        return as_bits(jnp.stack(found))

    def _save(self, state: PivotState, rows: list) -> PivotState:
        """The satellites' prompts in host memory."""
        for r, row in enumerate(rows):
            for i, (layer, h, _) in enumerate(self.clusters.satellites):
                where = state.offset[r, i], row.length, np.int32(h)
                k = _put_prompt(state.host, state.k, row.k[layer][0], *where)
                v = _put_prompt(state.host, state.v, row.v[layer][0], *where)
                state = state.replace(k=state.host.adopt(k, state.k), v=state.host.adopt(v, state.v))
        return state

    def check_cache(self, cache: Cache) -> None:
        if self.clusters.pivots:
            check_made_for(cache.retrieval, self.clusters, self.w)

    def attend(self, inputs: AttentionInputs, cache: Cache, context: AttendContext):
        pivots, state = self.clusters.of_layer(context.layer), cache.retrieval
        if not pivots:
            return *context.encode.attention(inputs.q, cache, context), cache
        if inputs.q.shape[3] != 1:
            raise ValueError(f"PivotRefresh watches one token at a time; got {inputs.q.shape[3]}")
        p, h = zip(*pivots, strict=True)
        held, n = state.held[:, np.array(p)], state.prompt_slots
        out, lse, a = context.encode.attention_with_weights(inputs.q, cache, context, heads=h, upto=held, n=n)
        rank = probability_keys(self.heads(self.pool(a)), jnp.arange(n) < held[..., None])
        rank, k = lax.optimization_barrier((rank, cache.k))  # keys may be read for it by themselves: before the pool is written
        return out, lse, cache.replace(k=k, retrieval=state.replace(fresh=(*state.fresh, rank)))

    def end(self, cache: Cache, encode: Encoder, *, count: Int32[Array, " b"]) -> PyTree:
        if not self.clusters.pivots:
            return cache
        cache = deliver(cache, encode, self.clusters, real=count > 0)
        state, row = cache.retrieval, jnp.arange(count.shape[0])
        rank = jnp.concatenate(state.fresh, 1)
        chosen = as_bits(select_top(rank, jnp.broadcast_to(state.base[:, None], rank.shape[:2])))
        slot = jnp.where(count > 0, state.steps % self.w, self.w)
        state = state.replace(fresh=(), chosen=state.chosen.at[row, slot].set(chosen, mode="drop"), steps=state.steps + count)
        due = (count > 0) & self.window.ends(state.steps, self.w)
        state, stores = state.split()  # a loop's carry is copied: the satellites' prompts stay outside
        judge = partial(self._judge, newest=chosen, due=due)
        state = lax.fori_loop(0, due.any().astype(jnp.int32), lambda _, state: judge(state), state)
        cache = cache.replace(retrieval=state.replace(windows=state.windows + due).joined(stores))
        cache = ask(cache, self.clusters, rank, real=count > 0)
        begin(cache, self.clusters, real=count > 0)
        return cache

    def _judge(self, state: PivotState, *, newest: UInt8[Array, "b p y"], due: Bool[Array, " b"]) -> PivotState:
        """Compare the pivots' windows with their references, in every row that is due."""
        median = jnp.median(overlaps(state.chosen, state.reference, state.base), axis=1)
        judged = due[:, None] & (state.base > 0)[:, None] & (state.base[:, None] < state.held)
        drift = judged & (median < self.theta)
        column = jnp.where(judged, (state.windows % self.traced)[:, None], self.traced)
        row, p = jnp.arange(due.shape[0])[:, None], jnp.arange(median.shape[1])
        return state.replace(
            reference=jnp.where(drift[..., None], newest, state.reference),
            pending=state.pending | drift,
            trace=state.trace.at[row, p, column].set(median, mode="drop"),
        )


def _offsets(lengths: list[int], satellites: int) -> np.ndarray:
    """First store row of each satellite of each row."""
    sizes = np.repeat(np.array(lengths)[:, None], satellites, axis=1)
    return (np.cumsum(sizes.reshape(-1)) - sizes.reshape(-1)).reshape(sizes.shape)


@partial(jax.jit, static_argnames=("size",))
def _first_reference(q, k, keep, h, *, base, pool, heads, size: int) -> Bool[Array, " n"]:
    """topk(s, base) of the prompt slots a head keeps, in their order; q [h g 1 d], k [h n d], keep [h n]."""
    q, k, keep = q[h], k[h], keep[h]
    valid = jnp.arange(k.shape[0]) < keep.sum()
    slots = jnp.minimum(listed(keep[None, None], k.shape[0])[0, 0], k.shape[0] - 1)
    z = jnp.einsum("gtd,nd->tgn", q, k[slots], preferred_element_type=jnp.float32) / jnp.sqrt(jnp.float32(k.shape[-1]))
    s = focus(jnp.where(valid, z, -jnp.inf)[None], valid[None], pool=pool, heads=heads)[0]
    return jnp.pad(most_probable(s, base, valid[None])[0], (0, size - k.shape[0]))


@partial(jax.jit, static_argnames=("host",), donate_argnames=("store",))
def _put_prompt(host, store, rows, offset, length, h):
    """A head's prompt rows [n, d] of [h n d] into the store, from row `offset` on."""
    order = jnp.arange(rows.shape[1], dtype=jnp.int32)

    def one(x):
        return x[None, None]

    return host.pick(store, one(rows[h]), one(order), one(offset), length[None])
