"""Keys that span the space of the others, beside attention from both sides (Compactor)."""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Float32

from kvjax.budget import share_of
from kvjax.evidence import Evidence, Need, RawKeys
from kvjax.score.non_causal import NonCausalAttention, z_score
from kvjax.stage import Scorer
from kvjax.types import Keys, Mask, Number, Scores
from kvjax.view import LayerView


def leverage(x: Keys, valid: Mask, *, sketch: Float[Array, "d r"] | None, jitter: Number) -> Scores:
    """diag(X (XᵀX + jitter I)⁻¹ Xᵀ), X the rows centred over the valid slots, times sketch / sqrt(r)."""
    x, there = x.astype(jnp.float32), valid[..., None]
    x = jnp.where(there, x - jnp.where(there, x, 0.0).sum(2, keepdims=True) / jnp.maximum(there.sum(2, keepdims=True), 1), 0.0)
    if sketch is not None:
        x = jnp.matmul(x, sketch / jnp.sqrt(jnp.float32(sketch.shape[1])), precision="highest")
    ridge = jnp.broadcast_to(jnp.sqrt(jitter) * jnp.eye(x.shape[-1]), (*x.shape[:2], x.shape[-1], x.shape[-1]))
    for _ in range(2):
        x, ridge = _orthogonal(x, ridge)
    return (x * x).sum(-1)


def _orthogonal(x: Keys, ridge: Float[Array, "b h d d"]) -> tuple[Keys, Float[Array, "b h d d"]]:
    """The columns of [x; ridge] made orthonormal by the Cholesky factor of their products; a second time mends the rounding."""
    gram = sum(jnp.einsum("bhnd,bhnc->bhdc", rows, rows, precision="highest") for rows in (x, ridge))
    factor = jnp.linalg.cholesky(gram)
    x, ridge = (jax.lax.linalg.triangular_solve(factor, rows, left_side=False, lower=True, transpose_a=True) for rows in (x, ridge))
    return x, ridge


@struct.dataclass
class Compactor(Scorer):
    """u = λ z(leverage) + attention, λ the share of the prompt that is removed: see `leverage` and `NonCausalAttention`.

    Args:
        attention: the second term.
        budget: the policy's, slots or a share, for λ = 1 - share.
        width: columns of the Gaussian sketch of the keys, one for all heads and layers; None for the keys themselves.
        seed: of the sketch.   jitter: added to the diagonal of XᵀX.

    Keys are those before the rotary embedding. Source: Compactor, arXiv 2507.08143, section 3.
    """

    attention: Scorer = NonCausalAttention()
    budget: Number = 0.5
    width: int | None = struct.field(pytree_node=False, default=48)
    seed: int = struct.field(pytree_node=False, default=0)
    jitter: Number = 0.01

    @property
    def needs(self) -> frozenset[Need]:
        return self.attention.needs | {RawKeys()}

    def sketch(self, d: int) -> Float32[Array, "d r"] | None:
        """A Gaussian matrix; None for none."""
        return None if self.width is None else jax.random.normal(jax.random.key(self.seed), (d, self.width), jnp.float32)

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        keys = evidence.of(RawKeys())
        spanning = z_score(leverage(keys, view.valid, sketch=self.sketch(keys.shape[-1]), jitter=self.jitter), view.valid)
        removed = 1 - share_of(self.budget, view.length)
        return removed[:, None, None] * spanning + self.attention.score(view, evidence)
