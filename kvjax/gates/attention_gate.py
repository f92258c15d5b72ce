"""Whether a token is worth keeping in the light of what stands around it (Attention-Gate)."""

import flax.linen as nn
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Float32

from kvjax.gates.gate import Gate
from kvjax.kernels.softmax import softmax

#: Queries whose rows of attention are alive at once.
_ROWS = 256

#: Queries, keys and values of the gate's own attention, by part m, of width r.
Reduced = Float32[Array, "b m n r"]


def gate_attention(q: Reduced, k: Reduced, v: Reduced, real: Bool[Array, "b n"], *, causal: bool) -> Reduced:
    """softmax_j(q_i k_j / sqrt(r)) v_j over the real tokens j, where causal over those with j <= i."""
    n, r = q.shape[2:]
    rows = min(n, _ROWS)
    tiles = -(-n // rows)
    parts = jnp.moveaxis(jnp.pad(q, ((0, 0), (0, 0), (0, tiles * rows - n), (0, 0))).reshape(*q.shape[:2], tiles, rows, r), 2, 0)

    def tile(at):
        first, q = at
        z = jnp.einsum("bmtr,bmnr->bmtn", q, k, precision=lax.Precision.HIGHEST) / jnp.sqrt(jnp.float32(r))
        seen = real[:, None, None] & (not causal or jnp.arange(n) <= first + jnp.arange(rows)[:, None])
        return jnp.einsum("bmtn,bmnr->bmtr", softmax(jnp.where(seen, z, -jnp.inf)), v, precision=lax.Precision.HIGHEST)

    out = lax.map(tile, (rows * jnp.arange(tiles), parts))
    return jnp.moveaxis(out, 0, 2).reshape(*q.shape[:2], tiles * rows, r)[:, :, :n]


class AttentionGate(Gate):
    """logit of keeping a token = [MHA'(x)] W + b, x the attention's normed input, MHA' a small attention of the gate's own.

    MHA' has `parts` heads of width `width`, whatever the layer has: q, k, v = x W_q, x W_k, x W_v.

    Args:
        heads: KV heads.   parts, width: of MHA'.
        causal: whether a token's logit reads what stands before it alone, as training by next tokens asks; if not, all of the text.

    Source: Attention-Gate, arXiv 2410.12876, section 3.1.
    """

    heads: int
    parts: int = 4
    width: int = 32
    causal: bool = True

    def setup(self):
        exact, size = lax.Precision.HIGHEST, self.parts * self.width
        self.q, self.k, self.v = (nn.Dense(size, use_bias=False, precision=exact) for _ in range(3))
        self.out = nn.Dense(self.heads, precision=exact)

    def reduced(self, x: Float[Array, "b t e"]) -> Float32[Array, "b m3 t r"]:
        """What MHA' reads of every token by itself: the parts of its query, then of its key, then of its value."""
        x = x.astype(jnp.float32)
        made = jnp.concatenate([project(x) for project in (self.q, self.k, self.v)], -1)
        return jnp.swapaxes(made.reshape(*x.shape[:2], 3 * self.parts, self.width), 1, 2)

    def logits(self, reduced: Float32[Array, "b m3 n r"], real: Bool[Array, "b n"]) -> Float32[Array, "b h n"]:
        """The logits of a whole text, of what `reduced` gives of it; unspecified where it is not real."""
        out = gate_attention(*jnp.split(reduced, 3, axis=1), real, causal=self.causal)
        return jnp.swapaxes(self.out(jnp.swapaxes(out, 1, 2).reshape(out.shape[0], out.shape[2], -1)), 1, 2)

    def __call__(self, x: Float[Array, "b t e"]) -> Float32[Array, "b h t"]:
        return self.logits(self.reduced(x), jnp.ones(x.shape[:2], bool))
