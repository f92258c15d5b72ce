"""Scalar codes: each channel of a unit vector goes to the nearest of a few fixed levels (TurboQuant)."""

import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Float32, Int32, PyTree, UInt8

from kvjax.codec.bit_stream import pack_bits, stream_bytes, unpack_bits
from kvjax.codec.codec import Codec
from kvjax.codec.lloyd_max import normal_levels, sphere_levels
from kvjax.codec.uniform import channels, whole_bytes
from kvjax.protocols import Decoder
from kvjax.types import Keys

DENSITIES = ("sphere", "normal")


def nearest_level(x: Float[Array, "*a"], levels: Float32[Array, " c"], ties_up: bool = False) -> Int32[Array, "*a"]:
    """argmin_i |x - c_i| of ascending levels: as many midpoints as lie below x. Ties to the lower index, or up."""
    midpoints = (levels[1:] + levels[:-1]) / 2
    found = jnp.searchsorted(midpoints, x.astype(jnp.float32), side="right" if ties_up else "left", method="compare_all")
    return found.astype(jnp.int32)


@struct.dataclass
class Levels(Codec):
    """x_j ≈ c of the nearest Lloyd-Max level for a coordinate of a random unit vector.

    Args:
        bits: of a code, 1 to 8.
        density: "sphere", that of a coordinate at this head dimension; "normal", N(0, 1/d), its limit.
        ties_up: whether a number halfway between two levels gets the upper one.

    Takes b bits a number; the head dimension is a multiple of 8. Not for vectors of other lengths: put it in `Normed`.
    Source: TurboQuant, arXiv 2504.19874, section 3.1.
    Raises: ValueError for other bits or densities; for head dimensions that do not fill bytes, when compressing.
    """

    bits: int = struct.field(pytree_node=False, default=4)
    density: str = struct.field(pytree_node=False, default="sphere")
    ties_up: bool = struct.field(pytree_node=False, default=False)

    def __post_init__(self):
        if not 1 <= self.bits <= 8 or self.density not in DENSITIES:
            raise ValueError(f"levels are of 1 to 8 bits and one of {DENSITIES}; got {self.bits}, {self.density!r}")

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        del length, mean_budget
        whole_bytes(model.head_dim)

    def table(self, d: int) -> Float32[Array, " c"]:
        """The levels, ascending."""
        found = sphere_levels(self.bits, d) if self.density == "sphere" else normal_levels(self.bits) / np.sqrt(d)
        return jnp.asarray(found, jnp.float32)

    def rows(self, slots: int, d: int, dtype: DTypeLike) -> UInt8[Array, "s w"]:
        del dtype
        return jnp.zeros((slots, stream_bytes(d, self.bits)), jnp.uint8)

    def encode(self, x: Keys, pos: Int32[Array, "b h n"] | None = None, params: PyTree = ()) -> UInt8[Array, "b h n w"]:
        del pos, params
        return pack_bits(nearest_level(x, self.table(x.shape[-1]), self.ties_up), self.bits)

    def decode(self, rows: UInt8[Array, "b h n w"], dtype: DTypeLike, params: PyTree = ()) -> Keys:
        del params
        d = channels(rows, self.bits)
        return self.table(d)[unpack_bits(rows, d, self.bits)].astype(dtype)
