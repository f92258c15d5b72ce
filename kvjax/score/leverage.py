"""How much of a window's energy a token holds in its key and its value (CUR)."""

import jax.numpy as jnp
from flax import struct

from kvjax.evidence import Evidence
from kvjax.ranges import Count
from kvjax.stage import Scorer
from kvjax.types import Function, Keys, Mask, Scores
from kvjax.view import LayerView


def row_leverage(x: Keys, valid: Mask, window: int | None) -> Scores:
    """l_j = ‖x_j‖² over the sum of it in j's window of `window` slots, cut from the first; over all slots for None."""
    squared = jnp.where(valid, jnp.square(x.astype(jnp.float32)).sum(-1), 0.0)
    n, size = squared.shape[-1], squared.shape[-1] if window is None else window
    padded = jnp.pad(squared, ((0, 0), (0, 0), (0, -n % size)))
    total = padded.reshape(*squared.shape[:2], -1, size).sum(-1)
    return squared / jnp.maximum(jnp.repeat(total, size, -1)[..., :n], 1e-30)


@struct.dataclass
class Product:
    """l_k l_v."""

    def __call__(self, l_k: Scores, l_v: Scores) -> Scores:
        return l_k * l_v


@struct.dataclass
class Mean:
    """(l_k + l_v) / 2."""

    def __call__(self, l_k: Scores, l_v: Scores) -> Scores:
        return (l_k + l_v) / 2


@struct.dataclass
class OfKeys:
    """l_k."""

    def __call__(self, l_k: Scores, l_v: Scores) -> Scores:
        return l_k


@struct.dataclass
class OfValues:
    """l_v."""

    def __call__(self, l_k: Scores, l_v: Scores) -> Scores:
        return l_v


@struct.dataclass
class WindowLeverage(Scorer):
    """u = combine(l_k, l_v), normalised to sum 1 over the slots held; the first `sinks` tokens score 1.

    Args:
        window: slots whose norms are compared; None for all.   sinks: first tokens, part of their window before they are lifted.
        combine: Product(), Mean(), OfKeys() or OfValues().

    Source: CurDKV, arXiv 2509.15038; norms in place of leverage scores are kvpress's.
    """

    window: int | None = struct.field(pytree_node=False, default=16)
    sinks: Count = 4
    combine: Function = Product()

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        del evidence
        u = self.combine(*(row_leverage(x, view.valid, self.window) for x in (view.k, view.v)))
        u = u / jnp.where(view.valid, u, 0.0).sum(-1, keepdims=True)
        return jnp.where(view.pos < self.sinks, 1.0, u)
