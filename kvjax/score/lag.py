"""How unevenly a token's channels spread in the range of the tokens that follow it (LagKV)."""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Float32, Int32, PyTree

from kvjax.evidence import Evidence
from kvjax.order import places
from kvjax.ranges import NonNegative, Size, Whole
from kvjax.stage import Scorer
from kvjax.types import Number, Scores
from kvjax.view import LayerView


def spread(x: Float[Array, "*b p lag d"], valid: Bool[Array, "*b p lag"], eps: Number) -> Float32[Array, "*b p lag"]:
    """σ = std over channels (d - 1) of (x - min) / (max - min + eps), min and max over the tokens of the next block.

    What the last block, which has no next one, gets has no meaning.
    """
    x, there = x.astype(jnp.float32), valid[..., None]
    low = jnp.roll(jnp.where(there, x, jnp.inf).min(-2, keepdims=True), -1, -3)
    high = jnp.roll(jnp.where(there, x, -jnp.inf).max(-2, keepdims=True), -1, -3)
    return jnp.std((x - low) / (high - low + eps), axis=-1, ddof=1)


def block_scores(x: Float[Array, "*b p lag d"], valid: Bool[Array, "*b p lag"], eps: Number) -> Float32[Array, "*b p lag"]:
    """s = softmax(σ) inside each block."""
    return jax.nn.softmax(spread(x, valid, eps), -1)


def rank_in_block(u: Float32[Array, "*b lag"]) -> Float32[Array, "*b lag"]:
    """How many tokens of its block score lower, over the block's size; equal scores: the lower position ranks lower."""
    return places(u.argsort(-1, stable=True)).astype(jnp.float32) / u.shape[-1]


def last_scored(pos: Int32[Array, "..."], length: Int32[Array, "..."], *, sinks: int, lag: int) -> Bool[Array, "..."]:
    """Whether a token behind the sinks is in a complete block that a complete block follows."""
    return (pos >= sinks) & ((pos - sinks) // lag < (length - sinks) // lag - 1)


@struct.dataclass
class LagSpread(Scorer):
    """u = (s_K + λ s_V) / (1 + λ) in blocks of `lag` tokens behind the sinks: see `block_scores`.

    The last complete block and what follows it score 1 + position / length, sinks 2: they outrank all blocks. Blocks are told by
    position: those of tokens that are no longer all held are scored by what is left, which no selector should ask.

    Args:
        sinks: first tokens, in no block.   lag: tokens of a block.
        value_weight: λ.   eps: added to every range.
        cross: whether blocks are compared by u; if not, by the rank inside each block, over lag.

    Source: LagKV, arXiv 2504.04704, section 3. Differs: tokens behind the last block scored, and sinks, are ordered (kvpress gives
    all of them 1), so that a small budget keeps sinks and recent tokens.
    """

    sinks: Whole = struct.field(pytree_node=False, default=4)
    lag: Size = struct.field(pytree_node=False, default=128)
    cross: bool = struct.field(pytree_node=False, default=False)
    value_weight: NonNegative = 1.0
    eps: NonNegative = 1e-6

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        del evidence
        length = view.length[:, None]
        pad = jnp.mod(length - view.held() - self.sinks, self.lag)
        blocks = _aligned(view.valid[..., None], pad, self.lag)[..., 0]
        s_k, s_v = (block_scores(_aligned(x, pad, self.lag), blocks, self.eps) for x in (view.k, view.v))
        u = (s_k + self.value_weight * s_v) / (1 + self.value_weight)
        u = (u if self.cross else rank_in_block(u)).reshape(*view.pos.shape[:2], -1)
        u = jnp.take_along_axis(u, jnp.arange(view.pos.shape[2]) + pad[..., None], -1)
        inside = last_scored(view.pos, length[..., None], sinks=self.sinks, lag=self.lag)
        behind = jnp.where(view.pos < self.sinks, 2.0, 1 + view.pos / length[..., None])
        return jnp.where(inside, u, behind).astype(jnp.float32)


def _aligned(x: PyTree, pad: Int32[Array, "b h"], lag: int) -> Array:
    """Slots [b, h, n, d] as blocks [b, h, p, lag, d], `pad` slots in front of the first; zeros where there is none."""
    n = x.shape[2]
    at = jnp.arange(-(-(n + lag - 1) // lag) * lag) - pad[..., None]
    rows = jnp.take_along_axis(x, jnp.clip(at, 0, n - 1)[..., None], 2)
    rows = jnp.where(((at >= 0) & (at < n))[..., None], rows, jnp.zeros((), x.dtype))
    return rows.reshape(*x.shape[:2], -1, lag, x.shape[3])
