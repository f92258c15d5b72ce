"""What the last queries' unnormalised exponentials say of each slot (KeepKV)."""

import math

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Float32, Int32

from kvjax.evidence import Evidence, Need, WindowQueries
from kvjax.kernels.window_scores import sees
from kvjax.ranges import NonNegative, Size
from kvjax.stage import Scorer
from kvjax.types import Keys, Mask, Number, Positions, Scores
from kvjax.view import LayerView

#: Logits are held inside ±80: their exponentials and sums of them are float32 numbers above 0.
_MOST = 80.0


@struct.dataclass
class Masses:
    """By slot: mean_g exp(z) of the last w queries, oldest first; 0 where a query could not see it."""

    recent: Float32[Array, "*x w"]


def exponentials(q: Float[Array, "b h g w d"], k: Keys, sees: Bool[Array, "b h w n"]) -> Float32[Array, "b h n w"]:
    """mean_g exp(q k / sqrt(d)), 0 where a query sees no slot."""
    z = jnp.einsum("bhgwd,bhnd->bhgwn", q, k, preferred_element_type=jnp.float32, precision="highest") / math.sqrt(q.shape[-1])
    e = jnp.exp(jnp.clip(z, -_MOST, _MOST)).mean(2)
    return jnp.swapaxes(jnp.where(sees, e, 0.0), 2, 3)


def visible(
    pos: Positions, valid: Mask, length: Int32[Array, " b"], w: int, window: Int32[Array, " b"] | None = None
) -> Bool[Array, "b h w n"]:
    """Which slots each of the last w queries of a text of `length` tokens sees; a query before the text sees none."""
    at = length[:, None] - w + jnp.arange(w, dtype=jnp.int32)
    return sees(pos, valid, at, window)[:, :, 0] & (at >= 0)[:, None, :, None]


def weighted(recent: Float32[Array, "*x w"], newest: Number) -> Float32[Array, "*x"]:
    """Σ_i w_i e_i, w_i from 1 linearly up to `newest`."""
    return (recent * jnp.linspace(1.0, newest, recent.shape[-1], dtype=jnp.float32)).sum(-1)


@struct.dataclass
class RawMass(Scorer):
    """u[j] = Σ_i w_i mean_g exp(z_ij) of the last `window` queries, w_i from 1 (the oldest) up to `newest`; z has no bias.

    What it keeps is what `ByVotes` weighs with: 4 · window bytes a slot.

    Source: KeepKV, arXiv 2504.09936, as released; group mean under grouped queries (the release serves none).
    """

    window: Size = struct.field(pytree_node=False, default=8)
    newest: NonNegative = 1.2

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({WindowQueries(self.window)})

    def init(self, shape: tuple[int, int, int]) -> Masses:
        return Masses(recent=jnp.zeros((*shape, self.window), jnp.float32))

    def observe(self, view: LayerView, evidence: Evidence) -> Masses:
        old, w = view.state, self.window
        seen = visible(view.pos, view.valid, evidence.length, w, evidence.window)
        fresh = exponentials(evidence.window_queries(w), view.k, seen)
        first = jnp.zeros_like(evidence.length) if view.since is None else view.since
        new = evidence.length - first
        at = jnp.arange(w, dtype=jnp.int32) + new[:, None]
        moved = jnp.take_along_axis(old.recent, jnp.clip(at, 0, w - 1)[:, None, None], -1)
        return Masses(recent=jnp.where((at >= w)[:, None, None], fresh, moved))

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        del evidence
        return weighted(view.state.recent, self.newest)
