"""The hardest look that the end of a prompt takes at a token, all heads together (MPCache's static rule)."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float, Float32, Int32

from kvjax.evidence import Evidence, Need, WindowQueries
from kvjax.ranges import Size
from kvjax.stage import Scorer
from kvjax.types import Keys, Number, Scores
from kvjax.view import LayerView


def head_mean_rows(
    q: Float[Array, "b h g w d"], k: Keys, valid: Bool[Array, "b n"], scale: Number = 1.0
) -> Float32[Array, "b w n"]:
    """mean over query heads of softmax_j(scale · q_i·k_j) over all tokens of the prompt, later ones included."""
    heads = q.shape[1]

    def add(h: Int32[Array, ""], total: Float32[Array, "b w n"]) -> Float32[Array, "b w n"]:
        z = scale * jnp.einsum("bgwd,bnd->bgwn", q[:, h], k[:, h], preferred_element_type=jnp.float32, precision="highest")
        z = jnp.where(valid[:, None, None], z, -jnp.inf)
        p = jnp.exp(z - z.max(-1, keepdims=True))
        return total + (p / p.sum(-1, keepdims=True)).sum(1)

    total = lax.fori_loop(0, heads, add, jnp.zeros((q.shape[0], q.shape[3], k.shape[2]), jnp.float32))
    return total / (heads * q.shape[2])


def rows_used(length: Int32[Array, " b"], window: int) -> Int32[Array, " b"]:
    """The last fifth of a prompt, the last tenth beyond 24,000 tokens; at least one row and no more than were recorded."""
    part = jnp.where(length > 24000, length // 10, length // 5)
    return jnp.clip(part, 1, window)


@struct.dataclass
class LookOnce(Scorer):
    """u_j = max_i mean_h p_ihj over the last fifth of the prompt's queries; one score for all heads of a layer.

    Args:
        window: most queries that are recorded.
        scale: what logits are multiplied by; the release takes them as they are, and thresholds mean that.

    Neither causal nor divided by sqrt(d), as in the release. Not defined while decoding, where heads may hold different tokens.
    Source: MPCache, arXiv 2501.06807, the static step. Differs: at most `window` queries.
    """

    prompt_only: ClassVar[bool] = True
    window: Size = struct.field(pytree_node=False, default=512)
    scale: Number = 1.0

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({WindowQueries(self.window)})

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        valid = view.valid[:, 0]
        rows = head_mean_rows(evidence.window_queries(self.window), view.k, valid, self.scale)
        real = jnp.arange(self.window) >= self.window - rows_used(view.length, self.window)[:, None]
        u = jnp.where(real[..., None], rows, 0.0).max(1)
        return jnp.broadcast_to(u[:, None], view.pos.shape)
