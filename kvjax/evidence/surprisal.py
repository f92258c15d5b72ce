"""How surprising each token was to the model itself."""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float32, Int32

from kvjax.evidence.of_output import OfOutput, OutputBlock


def surprisal(logits: Float32[Array, "b t v"], ids: Int32[Array, "b t"]) -> Float32[Array, "b t"]:
    """e_i = -log softmax(z_i)[x_i], in nats."""
    chosen = jnp.take_along_axis(logits, ids[..., None], -1)[..., 0]
    return jax.nn.logsumexp(logits, -1) - chosen


@struct.dataclass
class Surprisal(OfOutput):
    """e_i = -log P(x_i | x_<i): logits after token i - 1 judge token i. The first token of a text has none: 0."""

    @property
    def key(self) -> str:
        return "surprisal"

    def now(self, block: OutputBlock) -> Float32[Array, "b t"]:
        judges = jnp.concatenate([block.before[:, None], block.logits[:, :-1]], 1)
        at = block.offset[:, None] + jnp.arange(block.ids.shape[1], dtype=jnp.int32)
        return jnp.where(at == 0, 0.0, surprisal(judges, block.ids))
