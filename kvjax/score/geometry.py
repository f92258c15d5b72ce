"""The geometry of the keys as the score: how far a key stands from the others."""

import jax.numpy as jnp
from flax import struct

from kvjax.evidence import Evidence
from kvjax.norms import norm
from kvjax.stage import Scorer
from kvjax.types import Keys, Mask, Scores
from kvjax.view import LayerView


def length(x, *, eps: float = 1e-12, keepdims: bool = False):
    """max(||x||, eps) in float32."""
    return jnp.maximum(norm(x, keepdims=keepdims), eps)


def unit(x):
    """x / max(||x||, eps) in float32."""
    return x.astype(jnp.float32) / length(x, keepdims=True)


def key_difference(k: Keys, valid: Mask) -> Scores:
    """-cos(k_j, mean_i k_i/||k_i||) with the mean over valid slots."""
    direction = jnp.where(valid[..., None], unit(k), 0.0)
    anchor = direction.sum(-2) / jnp.maximum(valid.sum(-1), 1)[..., None]
    return -jnp.einsum("bhnd,bhd->bhn", direction, unit(anchor))


@struct.dataclass
class KeyDiff(Scorer):
    """u = -cos(k, anchor), anchor = mean of the normalised keys held: keep what differs most from the rest.

    Keys are the rotated ones, as in the reference code. Source: *KeyDiff*, arXiv 2504.15364, section 3.
    """

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        del evidence
        return key_difference(view.k, view.valid)
