"""Keys and values stored as they are, in the model's dtype or another."""

from typing import Any

import jax.numpy as jnp
from flax import struct

from kvjax.stage import Encoder


@struct.dataclass
class Plain(Encoder):
    """Slots in the model's own dtype."""

    def dtype(self, model_dtype: Any) -> Any:
        return model_dtype


@struct.dataclass
class Cast(Encoder):
    """Slots in `to` ("bfloat16", "float16", "float32"), whatever the model computes in; rounded once, when stored."""

    to: str = struct.field(pytree_node=False, default="bfloat16")

    def __post_init__(self):
        if self.to not in ("bfloat16", "float16", "float32"):
            raise ValueError(f'Cast stores slots as "bfloat16", "float16" or "float32"; got {self.to!r}')

    def dtype(self, model_dtype: Any) -> Any:
        del model_dtype
        return jnp.dtype(self.to)
