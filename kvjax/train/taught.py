"""What a student pass is told by a teacher's and by the text."""

import jax
from jaxtyping import Array, Float, Float32

from kvjax.train.batch import Batch
from kvjax.train.frozen import Frozen
from kvjax.train.losses import cross_entropy, forward_kl, masked_mean


def taught(
    frozen: Frozen, batch: Batch, teacher: Float[Array, "b t e"], student: Float[Array, "b t e"]
) -> tuple[Float32[Array, ""], Float32[Array, ""]]:
    """(mean KL(teacher ‖ student), mean -log p of the next token), over labelled tokens.

    Args:
        teacher, student: residual streams after the last layer.
    """

    def two(logits: jax.Array, x: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
        return forward_kl(frozen.unembed(x), logits), cross_entropy(logits, target)

    kl, ce = frozen.by_blocks(two, student, teacher, batch.next_tokens)
    return masked_mean(kl, batch.predicted), masked_mean(ce, batch.predicted)
