"""Keys and values stored as they are, in the model's dtype or another."""

from typing import Any, ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from kvjax.encode.scored import scored_attention
from kvjax.encode.values import OnDevice
from kvjax.kernels.ragged_attention import ragged_attention, ragged_scores, watched_attention
from kvjax.stage import Encoder
from kvjax.types import Keys, Layer


class Dense(Encoder):
    """Keys as rows of d numbers: what `Plain` and `Cast` share."""

    rewrites: ClassVar[bool] = False

    @property
    def padded(self) -> bool:
        return self.values.home != "device"

    def keys(self, slots: int, d: int, dtype: Any) -> Float[Array, "s d"]:
        return jnp.zeros((slots, d), self.value_dtype(dtype))

    def encode(self, k: Keys) -> Keys:
        return k

    def decode(self, rows: Keys, dtype: Any) -> Keys:
        return rows.astype(dtype)

    def scores(self, q, cache: Any, layer: Layer, *, positions, window: int | None, cap: int):
        where = (cache.pos, cache.start[layer], cache.length[layer], positions)
        return ragged_scores(q, cache.k, *where, cap=cap, bias=cache.bias, window=window)

    def attention(self, q, cache: Any, layer: int, *, positions, window: int | None, cap: int):
        if self.padded:
            return scored_attention(self, q, cache, layer, positions=positions, window=window, cap=cap)
        where = (cache.pos, cache.start[layer], cache.length[layer], positions)
        return ragged_attention(q, cache.k, cache.v, *where, bias=cache.bias, window=window)

    def watched(self, q, cache: Any, layer: int, *, heads: tuple[int, ...], upto, n: int, positions, window: int | None, cap: int):
        if self.padded or window is not None:
            how = dict(positions=positions, window=window, cap=cap)
            return super().watched(q, cache, layer, heads=heads, upto=upto, n=n, **how)
        where = (cache.pos, cache.start[layer], cache.length[layer], positions)
        out, lse, a = watched_attention(q, cache.k, cache.v, *where, heads=heads, upto=upto, cap=n, bias=cache.bias)
        return out, lse, a[..., 0, :]


@struct.dataclass
class Plain(Dense):
    """Slots in the model's own dtype.

    Args:
        values: where values live: OnDevice(), or in host memory with OnHost() or ByCallback().
    """

    values: Any = OnDevice()


@struct.dataclass
class Cast(Dense):
    """Slots in `to` ("bfloat16", "float16", "float32"), whatever the model computes in; rounded once, when stored.

    Args:
        to: the stored dtype.   values: where values live, as in `Plain`.
    """

    to: str = struct.field(pytree_node=False, default="bfloat16")
    values: Any = OnDevice()

    def __post_init__(self):
        if self.to not in ("bfloat16", "float16", "float32"):
            raise ValueError(f'Cast stores slots as "bfloat16", "float16" or "float32"; got {self.to!r}')

    def value_dtype(self, dtype: Any) -> Any:
        del dtype
        return jnp.dtype(self.to)
