"""Biases and values of the slots that stay, fitted to answer reference queries as all slots did (Attention Matching)."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Float32, PyTree

from kvjax.evidence import Need, WindowQueries
from kvjax.kernels.compact import first
from kvjax.kernels.softmax import softmax
from kvjax.least_squares import gram, largest_eigenvalue, least_squares
from kvjax.ranges import NonNegative, Whole
from kvjax.reference_queries import Seen, by_head, look, recorded
from kvjax.stage import Merger
from kvjax.types import Mask, Number, Scores
from kvjax.view import LayerView


@struct.dataclass
class Spectral:
    """‖X‖₂²."""

    def __call__(self, x: Float32[Array, "m t"], real: Bool[Array, " t"]) -> Float32[Array, ""]:
        del real
        return largest_eigenvalue(gram(x))


@struct.dataclass
class Frobenius:
    """‖X‖_F² / t."""

    def __call__(self, x: Float32[Array, "m t"], real: Bool[Array, " t"]) -> Float32[Array, ""]:
        return (x * x).sum() / real.sum()


@struct.dataclass
class Plain:
    """1."""

    def __call__(self, x: Float32[Array, "m t"], real: Bool[Array, " t"]) -> Float32[Array, ""]:
        del x, real
        return jnp.float32(1.0)


def fit_weights(
    e: Float32[Array, "m t"], total: Float32[Array, " m"], real: Bool[Array, " t"], *, low: Number, high: Number, steps: int
) -> Float32[Array, " t"]:
    """B = argmin ‖E B - total‖, clipped to [low, high], then B ← clip(B - Eᵀ (E B - total) / ‖E‖₂²) `steps` times."""
    b = jnp.clip(least_squares(e, total[:, None], real)[:, 0], low, high)
    size = largest_eigenvalue(gram(e)) if steps else 1.0
    for _ in range(steps):
        error = jnp.matmul(e, b, precision="highest") - total
        b = jnp.clip(b - jnp.matmul(e.T, error, precision="highest") / jnp.maximum(size, 1e-30), low, high)
    return b


@struct.dataclass
class MatchedAttention(Merger):
    """β = ln B, E_kept B ≈ E 1, and C ≈ argmin ‖softmax(z_kept + β) C - P V‖: what stays has the mass and the output of all.

    E are exponentials relative to each query's maximum over all keys, P its rows over their sums.

    Args:
        queries: reference queries, as for `ReferenceAttention`.
        low, high: bounds of B.   steps: projected-gradient steps behind the clip.
        direct: whether values stay as they are.
        ridge, scale: λ scale(X) is added to the diagonal of the value fit: Plain(), Spectral() or Frobenius().
        widest: most slots a head keeps; set before it is compiled.

    A head that evicts nothing stays as it is. Source: Attention Matching, arXiv 2602.16284. Differs: least squares by Cholesky with
    a millionth of the trace on the diagonal, refined (the release: a QR or SVD solver).
    """

    biased: ClassVar[bool] = True
    queries: Need = WindowQueries(512)
    low: Number = 0.049787068
    high: Number = 20.085537
    steps: Whole = struct.field(pytree_node=False, default=2)
    direct: bool = struct.field(pytree_node=False, default=False)
    ridge: NonNegative = 0.0
    scale: PyTree = Plain()
    widest: int | None = struct.field(pytree_node=False, default=None)

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({self.queries})

    def sized(self, widest: int) -> "MatchedAttention":
        return self.replace(widest=widest)

    def __call__(self, view: LayerView, keep: Mask, scores: Scores, memory: PyTree) -> tuple[LayerView, PyTree]:
        q, widest = recorded(self.queries, view.seen), min(self.widest or keep.shape[-1], keep.shape[-1])
        at = first(keep)[..., :widest]
        bias, values = by_head(self._of_head, q, view.k, view.v, view.valid, at, keep.sum(-1))
        fits = (view.valid & ~keep).any(-1)[..., None]
        at = jnp.where(fits & (jnp.arange(widest) < keep.sum(-1)[..., None]), at, keep.shape[-1])
        b, h = (i[..., None] for i in jnp.indices(keep.shape[:2]))
        v = view.v if self.direct else view.v.at[b, h, at].set(values.astype(view.v.dtype), mode="drop")
        return view.replace(v=v, bias=view.bias.at[b, h, at].set(bias, mode="drop")), memory

    def _of_head(self, q: Array, k: Array, v: Array, valid: Array, at: Array, kept: Array) -> tuple[Array, Array]:
        """(β [t], C [t, d]) of the slots `at`, of which the first `kept` count."""
        seen, real = look(q, k, valid), jnp.arange(at.shape[0]) < kept
        e = jnp.where(real, seen.e[:, at], 0.0)
        b = fit_weights(e, seen.total, real, low=self.low, high=self.high, steps=self.steps)
        beta = jnp.where(real, jnp.log(b), 0.0)
        return beta, v[at] if self.direct else self._values(seen, at, real, beta, v)

    def _values(self, seen: Seen, at: Array, real: Array, beta: Array, v: Float[Array, "n d"]) -> Float32[Array, "t d"]:
        x = softmax(jnp.where(real, seen.z[:, at] + beta, -jnp.inf))
        x = jnp.where(seen.real[:, None], x, 0.0)
        wanted = jnp.matmul(seen.p, v.astype(jnp.float32), precision="highest")
        return least_squares(x, wanted, real, self.ridge * self.scale(x, real))
