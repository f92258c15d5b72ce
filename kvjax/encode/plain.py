"""Keys and values stored as they are, in the model's dtype or another."""

from typing import Any, ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from kvjax.attend_context import AttendContext
from kvjax.encode.scored import scored_attention
from kvjax.kernels.ragged_attention import attention_with_weights, ragged_attention, ragged_scores
from kvjax.placement import OnDevice
from kvjax.stage import Encoder
from kvjax.types import Keys, Queries


class Dense(Encoder):
    """Keys as rows of d numbers: what `Plain` and `Cast` share."""

    rewrites: ClassVar[bool] = False

    @property
    def padded(self) -> bool:
        return not self.placement.on_device

    def keys(self, slots: int, d: int, dtype: Any) -> Float[Array, "s d"]:
        return jnp.zeros((slots, d), self.value_dtype(dtype))

    def encode(self, k: Keys) -> Keys:
        return k

    def decode(self, rows: Keys, dtype: Any) -> Keys:
        return rows.astype(dtype)

    def scores(self, q: Queries, cache: Any, context: AttendContext):
        where = (cache.pos, cache.start[context.layer], cache.length[context.layer], context.positions)
        return ragged_scores(q, cache.k, *where, cap=context.padded_slots, bias=cache.bias, window=context.window)

    def attention(self, q: Queries, cache: Any, context: AttendContext):
        if self.padded:
            return scored_attention(self, q, cache, context)
        where = (cache.pos, cache.start[context.layer], cache.length[context.layer], context.positions)
        return ragged_attention(q, cache.k, cache.v, *where, bias=cache.bias, window=context.window)

    def attention_with_weights(self, q: Queries, cache: Any, context: AttendContext, *, heads: tuple[int, ...], upto, n: int):
        if self.padded or context.window is not None:
            return super().attention_with_weights(q, cache, context, heads=heads, upto=upto, n=n)
        where = (cache.pos, cache.start[context.layer], cache.length[context.layer], context.positions)
        out, lse, a = attention_with_weights(q, cache.k, cache.v, *where, heads=heads, upto=upto, cap=n, bias=cache.bias)
        return out, lse, a[..., 0, :]


@struct.dataclass
class Plain(Dense):
    """Slots in the model's own dtype.

    Args:
        placement: where values live: OnDevice(), or in host memory with OnHost() or ByCallback().
    """

    placement: Any = OnDevice()


@struct.dataclass
class Cast(Dense):
    """Slots in `to` ("bfloat16", "float16", "float32"), whatever the model computes in; rounded once, when stored.

    Args:
        to: the stored dtype.   placement: where values live, as in `Plain`.
    """

    to: str = struct.field(pytree_node=False, default="bfloat16")
    placement: Any = OnDevice()

    def __post_init__(self):
        if self.to not in ("bfloat16", "float16", "float32"):
            raise ValueError(f'Cast stores slots as "bfloat16", "float16" or "float32"; got {self.to!r}')

    def value_dtype(self, dtype: Any) -> Any:
        del dtype
        return jnp.dtype(self.to)
