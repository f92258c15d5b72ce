"""Evicted slots averaged into the kept slot whose key is nearest by cosine."""

import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float32, Int32

from kvjax.score.geometry import unit
from kvjax.stage import Merger
from kvjax.types import Keys, Mask, Number, Scores
from kvjax.view import LayerView

#: Evicted keys compared at a time: memory stays linear in the number of slots.
_ROWS = 256


def nearest_kept(k: Keys, keep: Mask) -> tuple[Int32[Array, "b h n"], Float32[Array, "b h n"]]:
    """For every slot the kept slot of highest key cosine (lower slot on ties), and that cosine."""
    direction, n = unit(k), k.shape[2]
    blocks = -(-n // _ROWS)
    padded = jnp.pad(direction, ((0, 0), (0, 0), (0, blocks * _ROWS - n), (0, 0)))

    def compare(i):
        rows = lax.dynamic_slice_in_dim(padded, i * _ROWS, _ROWS, axis=2)
        cosine = jnp.where(keep[:, :, None], jnp.einsum("bhmd,bhnd->bhmn", rows, direction), -jnp.inf)
        return cosine.argmax(-1).astype(jnp.int32), cosine.max(-1)

    nearest, cosine = lax.map(compare, jnp.arange(blocks))
    join = lambda x: jnp.moveaxis(x, 0, 2).reshape(*k.shape[:2], -1)[..., :n]  # noqa: E731
    return join(nearest), join(cosine)


def average_into(x: Keys, target: Int32[Array, "b h n"], joins: Bool[Array, "b h n"]) -> Keys:
    """x_j ← (x_j + Σ_i x_i) / (1 + count) over the slots i that join j; float32 sums, the dtype of x back."""
    rows = jnp.where(joins[..., None], x.astype(jnp.float32), 0.0)
    b, h = jnp.indices(target.shape)[:2]
    total = x.astype(jnp.float32).at[b, h, target].add(rows)
    count = jnp.ones(target.shape, jnp.float32).at[b, h, target].add(joins.astype(jnp.float32))
    return (total / count[..., None]).astype(x.dtype)


@struct.dataclass
class NearestKey(Merger):
    """v_j ← mean of v_j and the values of the evicted slots whose nearest kept key is k_j, if their cosine exceeds `threshold`.

    Keys stay as they are: the mean of keys rotated at different positions belongs to no position.

    Args:
        threshold: cosine below which an evicted slot is dropped instead (1 drops everything).
    """

    threshold: Number = 0.6

    def __call__(self, view: LayerView, keep: Mask, scores: Scores, memory: dict) -> tuple[LayerView, dict]:
        del scores
        nearest, cosine = nearest_kept(view.k, keep)
        joins = view.valid & ~keep & (cosine > self.threshold)
        return view.replace(v=average_into(view.v, nearest, joins)), memory
