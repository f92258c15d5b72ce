"""Attention tempered and shaken by noise before it is summed (Keyformer)."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float32, Int32, PyTree

from kvjax.evidence.reduce import PerKey, Rows, RowsAt, Sum, alike
from kvjax.kernels.softmax import softmax
from kvjax.noise import gumbel_at
from kvjax.types import Layer, Number


def tempered(p: Rows, visible: Bool[Array, "b h g t n"], noise: PyTree, tau: Float32[Array, "b t"]) -> Rows:
    """softmax_n((ln p + ξ) / τ) over the keys a query sees: of logits x it is softmax((x + ξ) / τ), as ln p = x - const."""
    z = (jnp.log(jnp.where(visible, p, 1.0)) + noise) / tau[:, None, None, :, None]
    return softmax(jnp.where(visible, z, -jnp.inf))


@struct.dataclass
class Tempered(Sum):
    """Σ_t softmax((x_t + ξ_t) / τ), τ = min(1 + slope · step, end); the prompt is step 0, the first token after it step 1.

    ξ is standard Gumbel noise: one number for every layer, query head, query and key. What a query does not see stays out whatever
    its noise.

    Args:
        seed: an integer; None for no noise.   slope: what τ gains a step.   end: the highest τ.
        layer: the layer it is for (set by `at`).
    """

    key = "tempered"
    seed: Number = 0
    slope: Number = 0.01
    layer: Number = 0
    end: Number = 2.0

    def __eq__(self, other: object) -> bool:
        return alike(self, other)

    def __hash__(self) -> int:
        return hash(self.key)  # numbers may be traced

    def at(self, layer: Layer) -> "Tempered":
        return self.replace(layer=layer)

    def of_rows_at(self, p: Rows, positions: Int32[Array, "b t"], visible: Bool[Array, "b h g t n"], where: RowsAt) -> PerKey:
        noise = 0.0 if self.seed is None else self._noise(p.shape, positions, where)
        tau = jnp.minimum(1.0 + self.slope * where.steps.astype(jnp.float32), self.end)
        return tempered(p, visible, noise, tau).sum(3)

    def _noise(self, shape: tuple[int, ...], positions: Int32[Array, "b t"], where: RowsAt) -> Rows:
        h, g = shape[1:3]
        heads = jnp.arange(h * g, dtype=jnp.int32).reshape(h, g, 1, 1)
        return gumbel_at(self.seed, self.layer, heads, positions[:, None, None, :, None], where.keys[:, :, None, None])
