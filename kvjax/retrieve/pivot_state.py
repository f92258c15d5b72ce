"""What pivots remember while decoding, and the whole prompts of their satellites in host memory."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float, Float32, Int32, Int64, PyTree, UInt8, UInt32

from kvjax.cache.counter import Counter
from kvjax.cache.retriever_state import RetrieverState
from kvjax.placement import OnDevice
from kvjax.retrieve.clusters import Clusters
from kvjax.types import size_class


@struct.dataclass
class PivotState(RetrieverState):
    """Axis letters: p pivots and m satellites of all layers, w queries of a window, n prompt slots, y = ceil(n / 8) bytes of a set
    of them, c windows traced.

    Attributes:
        k, v: stores of the satellites' prompt keys and values, rows [slots, d], one satellite behind the other.
        offset: first row of each satellite.   room: its prompt slots on the device (L_m).
        away: tokens of each head's prompt that only the stores hold.
        held: prompt slots of each pivot.   base: L_base.
        fresh: within a step, sort keys of where the pivots of each layer look, [b, pivots of the layer, n]; else ().
        chosen: I of the newest w queries.   steps: tokens seen, so that query i stands at steps % w.
        reference: I_ref.   asked: J_m of the fetch under way. Both, and I, by the pivot's prompt slots, a bit each.
        pending: pivots whose satellites are being fetched.
        refreshes: fetches so far.   fetched: satellite slots they brought.   moved: with the rest of blocks that were not full.
        trace: median overlap of the last windows, window i at i % c, NaN where there was none.   windows: how many there were.
        host: the home of k and v.   slot_nbytes: bytes of one slot's key and value there.
        watched: roles and pivots of the heads that it was made for (`Clusters.tables`).
    """

    k: PyTree
    v: PyTree
    offset: Int32[Array, "b m"]
    room: Int32[Array, "b m"]
    away: Int32[Array, "b l h"]
    held: Int32[Array, "b p"]
    base: Int32[Array, " b"]
    fresh: tuple[UInt32[Array, "b _ n"], ...]
    chosen: UInt8[Array, "b w p y"]
    steps: Int32[Array, " b"]
    reference: UInt8[Array, "b p y"]
    asked: UInt8[Array, "b m y"]
    pending: Bool[Array, "b p"]
    refreshes: Int32[Array, "b p"]
    fetched: Counter
    moved: Counter
    trace: Float32[Array, "b p c"]
    windows: Int32[Array, " b"]
    host: OnDevice = struct.field(pytree_node=False)
    slot_nbytes: int = struct.field(pytree_node=False)
    watched: tuple = struct.field(pytree_node=False, repr=False, default=())

    @property
    def prompt_slots(self) -> int:
        """Most prompt slots of a pivot, in whole bytes of bits."""
        return 8 * self.reference.shape[-1]

    @property
    def fetched_nbytes(self) -> Int64[np.ndarray, " b"]:
        """Bytes that went from the host to the device for each row, keys and values: 2 d b_e Σ L_m over all refreshes."""
        return self.fetched.total * self.slot_nbytes

    @property
    def moved_nbytes(self) -> Int64[np.ndarray, " b"]:
        """Bytes that a program moved for them: blocks of a fixed size come whole."""
        return self.moved.total * self.slot_nbytes

    @property
    def elsewhere(self) -> PyTree:
        return jnp.moveaxis(self.away, 0, 1)

    @property
    def common(self) -> str:
        sizes = f"drift windows of {self.chosen.shape[1]} queries, {self.trace.shape[-1]} of them traced"
        return f"slots of {self.slot_nbytes} bytes in {self.host!r}, {sizes}, roles and pivots {self.watched}"

    @property
    def raw(self) -> PyTree:
        return self.k, self.v

    def split(self) -> tuple["PivotState", PyTree]:
        """The state without its stores, which decoding only reads, and the stores."""
        return self.replace(k=None, v=None), (self.k, self.v)

    def joined(self, stores: PyTree) -> "PivotState":
        """The state with its stores."""
        return self.replace(k=stores[0], v=stores[1])

    @staticmethod
    def stack(states: list) -> "PivotState":
        """Several rows as one batch."""
        widest, shift, offsets = max(s.reference.shape[-1] for s in states), 0, []
        for s in states:
            offsets.append(s.offset + shift)
            shift += s.k.shape[0]
        states = [s.replace(offset=o, **_padded(s, widest)) for s, o in zip(states, offsets, strict=True)]
        host = states[0].host
        cat = jnp.concatenate if host.on_device else host.concatenate
        stores = dict(k=cat([s.k for s in states]), v=cat([s.v for s in states]))
        rest = jax.tree.map(lambda *x: jnp.concatenate(x), *(s.replace(k=None, v=None) for s in states))
        return rest.replace(**stores)


def check_made_for(state: PyTree, clusters: Clusters, w: int) -> None:
    """Raise ValueError for what is no state of these clusters and drift windows of w queries."""
    if not isinstance(state, PivotState):
        raise ValueError("the cache has no copy of the satellites' prompts: compress it with this policy")
    if (state.watched, state.chosen.shape[1]) != (clusters.tables, w):
        raise ValueError(
            f"the cache was made for other clusters, or drift windows of {state.chosen.shape[1]} queries instead of {w}: compress "
            "it with this policy"
        )


def _padded(state: PivotState, y: int) -> dict:
    """What has a prompt-slot axis, widened to y bytes."""

    def wide(x):
        return jnp.pad(x, (*((0, 0),) * (x.ndim - 1), (0, y - x.shape[-1])))

    return {name: wide(getattr(state, name)) for name in ("chosen", "reference", "asked")}


def as_bits(chosen: Bool[Array, "*b n"]) -> UInt8[Array, "*b y"]:
    """A set of slots, eight to a byte."""
    return jnp.packbits(chosen, axis=-1)


def of_bits(bits: UInt8[Array, "*b y"]) -> Bool[Array, "*b n"]:
    """The set again."""
    return jnp.unpackbits(bits, axis=-1).astype(bool)


def overlaps(
    chosen: UInt8[Array, "b w p y"], reference: UInt8[Array, "b p y"], base: Int32[Array, " b"]
) -> Float32[Array, "b w p"]:
    """O = |I ∩ I_ref| / L_base."""
    both = lax.population_count(chosen & reference[:, None]).sum(-1, dtype=jnp.int32)
    return both / jnp.maximum(base, 1).astype(jnp.float32)[:, None, None]


def empty(
    like: Float[Array, "h n d"], *, host: OnDevice, slots: int, traced: int, away: Int32[Array, "b l h"], p: int, m: int, n: int,
    w: int,
) -> PivotState:  # fmt: skip
    """A state that has seen nothing.

    Args:
        like: keys of a layer, for d and the dtype.   host: the home of the stores.   slots: satellite tokens they hold.
        traced: windows traced.   away: as the state's.   p, m, n, w: sizes, by their axis letters.
    """
    d, y, b = like.shape[-1], -(-n // 8), len(away)

    def whole(*shape):
        return jnp.zeros(shape, jnp.int32)

    def sets(*shape):
        return jnp.zeros(shape, jnp.uint8)

    def store():
        return host.empty(size_class(slots), d, like.dtype)

    return PivotState(
        k=store(), v=store(), offset=whole(b, m), room=whole(b, m), away=away, held=whole(b, p), base=whole(b),
        fresh=(), chosen=sets(b, w, p, y), steps=whole(b), reference=sets(b, p, y), asked=sets(b, m, y),
        pending=jnp.zeros((b, p), bool),
        refreshes=whole(b, p), fetched=Counter.zeros(b), moved=Counter.zeros(b), windows=whole(b),
        trace=jnp.full((b, p, traced), jnp.nan, jnp.float32),
        host=host, slot_nbytes=2 * d * like.dtype.itemsize,
    )  # fmt: skip
