"""Evidence of the model's output: a value for each token, made of logits where the last layer has been."""

from collections.abc import Callable, Iterable
from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Float, Float32, Int32

from kvjax.evidence.need import Need, Shape
from kvjax.evidence.per_token import PerToken

#: Tokens whose logits are alive at once. Prompts are cut at multiples of it, so that a token's logits do not depend on the chunk.
AT_ONCE = 64


@struct.dataclass
class OutputBlock:
    """Tokens that the whole model has read.

    Attributes:
        ids: the tokens.   logits: after each of them.   before: after the token before the first; zeros if there is none.
        offset: position of the first.   count: how many are real.
    """

    ids: Int32[Array, "b t"]
    logits: Float32[Array, "b t v"]
    before: Float32[Array, "b v"]
    offset: Int32[Array, " b"]
    count: Int32[Array, " b"]


class OfOutput(PerToken):
    """A value for each token, float32 [b n] of a prompt and [b t] of a step, the same in every layer.

    A subclass says what it is of an `OutputBlock`, `now`. Costs the head's product with every token's hidden state, a few tokens at
    a time. A prompt that is compressed layer by layer does not have it in time.
    """

    whole_model: ClassVar[bool] = True

    def empty(self, shape: Shape) -> Float32[Array, "b n"]:
        return jnp.zeros((shape.b, shape.n), jnp.float32)

    def now(self, block: OutputBlock) -> Float32[Array, "b t"]:
        raise NotImplementedError(f"{type(self).__name__} must define now(block)")


Values = dict[str, Float32[Array, "b t"]]


def of_output(
    needs: Iterable[Need], unembed: Callable[[Float[Array, "b t e"]], Float32[Array, "b t v"]], x: Float[Array, "b t e"],
    ids: Int32[Array, "b t"], *, before: Float32[Array, "b v"], offset: Int32[Array, " b"], count: Int32[Array, " b"],
) -> tuple[Values, Float32[Array, "b v"]]:  # fmt: skip
    """Every need's values of t tokens, and the logits after the last real one.

    Args:
        needs: of the model's output.   unembed: hidden states → logits.   x: what the last layer gave for the tokens.
        before, offset, count: as in `OutputBlock`.
    """
    t = x.shape[1]
    size = min(AT_ONCE, t)

    def cut(y):
        return jnp.moveaxis(_padded(y, -t % size).reshape(y.shape[0], -1, size, *y.shape[2:]), 1, 0)

    firsts = jnp.arange(-(-t // size), dtype=jnp.int32) * size

    def some(before, part):
        x, ids, first = part
        real = jnp.clip(count - first, 0, size)
        block = OutputBlock(ids=ids, logits=unembed(x), before=before, offset=offset + first, count=real)
        last = jnp.take_along_axis(block.logits, jnp.maximum(real - 1, 0)[:, None, None], 1)[:, 0]
        return jnp.where((real > 0)[:, None], last, before), {need.key: need.now(block) for need in needs}

    before, found = lax.scan(some, before, (cut(x), cut(ids), firsts))
    return {key: jnp.moveaxis(y, 0, 1).reshape(y.shape[1], -1)[:, :t] for key, y in found.items()}, before


def _padded(x: Array, extra: int) -> Array:
    """Zeros behind the tokens."""
    return jnp.pad(x, ((0, 0), (0, extra), *((0, 0),) * (x.ndim - 2)))
