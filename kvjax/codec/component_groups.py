"""Runs of components, each coded in as many bits as its run was given, with a step and a shift a token and run (KVTC)."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Float16, Float32, Int32, Integer, PyTree, UInt8

from kvjax.codec.codec import Codec
from kvjax.codec.fp8 import KINDS, from_fp8, to_fp8
from kvjax.types import Keys, Layer, Table, later_table, table

#: Bits of a code: nothing, integers, and eight-bit floating point.
BITS = (0, 2, 4, 8)
#: Bytes of a run's step and shift, float16 each, and the bits that they are.
META = 4
OVERHEAD = 8 * META
#: Floating point's format, and its greatest number.
_KIND = "e4m3"
_TOP = KINDS[_KIND][1]


def row_bits(sizes: Integer[np.ndarray, "*l g"], bits: Integer[np.ndarray, "*l g"]) -> Integer[np.ndarray, "*l"]:
    """Σ_g (size_g bits_g + 32) over the runs that are stored."""
    return np.where((bits > 0) & (sizes > 0), sizes.astype(int) * bits + OVERHEAD, 0).sum(-1)


def run_range(
    low: Float32[Array, "*a"], high: Float32[Array, "*a"], bits: Int32[Array, "*#a"]
) -> tuple[Float[Array, "*a"], Float[Array, "*a"]]:
    """(step, shift) of runs between `low` and `high`, float16: (high - low) / (2^b - 1) and low; of floating point half the
    range over the format's greatest number, and the middle."""
    float8 = bits == BITS[-1]
    top = jnp.where(float8, 2 * _TOP, jnp.left_shift(1, bits) - 1).astype(jnp.float32)
    step = (high - low) / jnp.maximum(top, 1)
    return _half(step), _half(jnp.where(float8, (high + low) / 2, low))


def _half(x: Float32[Array, "*a"]) -> Float16[Array, "*a"]:
    """The nearest float16 number, the greatest one beyond it."""
    most = float(jnp.finfo(jnp.float16).max)
    return jnp.clip(x, -most, most).astype(jnp.float16)


def codes_of(
    y: Float[Array, "*a"], step: Float[Array, "*#a"], shift: Float[Array, "*#a"], bits: Int32[Array, "*#a"]
) -> UInt8[Array, "*a"]:
    """clip(round((y - shift) / step), 0, 2^b - 1), halves to the even one; of eight bits e4m3((y - shift) / step).

    `step` and `shift` are float16 numbers; a step of 0 divides as 1.
    """
    step, shift = step.astype(jnp.float32), shift.astype(jnp.float32)
    level = (y.astype(jnp.float32) - shift) / jnp.where(step > 0, step, 1.0)
    whole = jnp.clip(jnp.round(level), 0, jnp.left_shift(1, bits) - 1).astype(jnp.uint8)
    return jnp.where(bits == BITS[-1], to_fp8(level, _KIND), whole)


def numbers_of(
    codes: UInt8[Array, "*a"], step: Float[Array, "*#a"], shift: Float[Array, "*#a"], bits: Int32[Array, "*#a"]
) -> Float32[Array, "*a"]:
    """y^ = shift + step · code; 0 where there are no bits."""
    level = jnp.where(bits == BITS[-1], from_fp8(codes, _KIND), codes.astype(jnp.float32))
    return jnp.where(bits > 0, shift.astype(jnp.float32) + step.astype(jnp.float32) * level, 0.0)


@struct.dataclass
class ComponentGroups(Codec):
    """y_i ≈ shift_g + step_g · code_i, g the run that component i is in.

    Args:
        bits: [L, G] of each run: 2 or 4, an integer; 8, an e4m3 number; 0, nothing is stored and y^_i = 0.
        run: [L, r] of each component.   place: [L, r] of each component's code in a row, in bits.
        width: bytes of a row, those of the layer that has most.
        origin: where the tables are from; two codecs of one origin are equal.

    A row holds the steps and shifts of the stored runs, 4 bytes each, then the codes of 8 bits, of 4 and of 2, so that no code
    lies in two bytes. Integers are clip(round((y - shift) / step), 0, 2^b - 1), halves to the even one; a run of one value has
    step 0 and codes 0. Make one with `ComponentGroups.of`.
    Source: KVTC, arXiv 2511.01815, section 3. Differs: the paper does not say where an eight-bit number's shift lies: the middle.
    (Kernels of ai-dynamo/dynamo after the paper cast such numbers as they are, without a step or a shift.)
    """

    bits: Table = table()
    run: Table = table()
    place: Table = later_table()
    width: int = struct.field(pytree_node=False, default=0)
    origin: str = struct.field(pytree_node=False, default="")

    @classmethod
    def of(cls, sizes: Integer[np.ndarray, "l g"], bits: Integer[np.ndarray, "l g"], origin: str = "") -> "ComponentGroups":
        """Runs of so many components and bits, in the order of the components; sizes of 0 fill up a layer of fewer runs.

        Raises:
            ValueError: other bits, or a layer without components.
        """
        sizes, bits = np.asarray(sizes, np.int32), np.asarray(bits, np.int32)
        if not set(np.unique(bits)) <= set(BITS) or not sizes.sum(-1).all():
            raise ValueError(f"each layer has runs of {BITS} bits; got sizes {sizes.tolist()}, bits {bits.tolist()}")
        laid = [_laid_out(*of_layer) for of_layer in zip(sizes, bits, strict=True)]
        rank = max(len(run) for _, run, _ in laid)

        def pad(x, value):
            return np.pad(x, (0, rank - len(x)), constant_values=value)

        kept = np.stack([kept for kept, _, _ in laid])
        run = np.stack([pad(run, sizes.shape[1]) for _, run, _ in laid])
        place = np.stack([pad(place, 0) for _, _, place in laid])
        width = int(-(-row_bits(sizes, bits).max() // 8))
        return cls(bits=kept, run=run.astype(np.int32), place=place.astype(np.int32), width=width, origin=origin)

    def at(self, layer: Layer) -> "ComponentGroups":
        return self.replace(bits=self.bits[layer], run=self.run[layer], place=self.place[layer])

    def rows(self, slots: int, d: int, dtype: DTypeLike) -> UInt8[Array, "s w"]:
        del d, dtype
        return jnp.zeros((slots, self.width), jnp.uint8)

    def encode(self, x: Keys, pos: Int32[Array, "b h n"] | None = None, params: PyTree = ()) -> UInt8[Array, "b h n w"]:
        del pos, params
        bits, of, place = self._layout()
        y = jnp.moveaxis(x.astype(jnp.float32), -1, 0)
        ends = jax.ops.segment_min(y, self._runs(), len(bits) + 1), jax.ops.segment_max(y, self._runs(), len(bits) + 1)
        low, high = (jnp.where(self._stored(), jnp.moveaxis(end, 0, -1)[..., :-1], 0.0) for end in ends)
        step, shift = run_range(low, high, bits)
        code = codes_of(x, _of_run(step, self._runs()), _of_run(shift, self._runs()), of)
        code = jnp.where(of > 0, code, 0) << (place % 8).astype(jnp.uint8)
        rows = jnp.zeros((*x.shape[:-1], self.width), jnp.uint8).at[..., place // 8].add(code, mode="drop")
        meta = lax.bitcast_convert_type(jnp.stack([step, shift], -1), jnp.uint8).reshape(*rows.shape[:-1], -1)
        return rows.at[..., self._meta_bytes()].set(meta, mode="drop")

    def decode(self, rows: UInt8[Array, "b h n w"], dtype: DTypeLike, params: PyTree = ()) -> Keys:
        del params
        bits, of, place = self._layout()
        meta = jnp.take(rows, self._meta_bytes(), axis=-1, mode="fill", fill_value=0)
        meta = lax.bitcast_convert_type(meta.reshape(*rows.shape[:-1], len(bits), 2, 2), jnp.float16)
        step, shift = (_of_run(meta[..., i], self._runs()) for i in (0, 1))
        code = jnp.take(rows, place // 8, axis=-1, mode="clip") >> (place % 8).astype(jnp.uint8)
        code = code & (jnp.left_shift(1, of) - 1).astype(jnp.uint8)
        return numbers_of(code, step, shift, of).astype(dtype)

    def _runs(self) -> Int32[Array, " r"]:
        return jnp.asarray(self.run)

    def _stored(self) -> Array:
        return jnp.asarray(self.bits) > 0

    def _layout(self) -> tuple[Int32[Array, " g"], Int32[Array, " r"], Int32[Array, " r"]]:
        """Bits of every run, bits of every component, and its place; components that are not stored are beyond the row."""
        bits = jnp.asarray(self.bits)
        of = jnp.pad(bits, (0, 1))[self._runs()]
        return bits, of, jnp.where(of > 0, jnp.asarray(self.place), 8 * self.width)

    def _meta_bytes(self) -> Int32[Array, " m"]:
        """Where each run's step and shift lie; beyond the row for those that are not stored."""
        stored = self._stored()
        first = jnp.where(stored, META * (jnp.cumsum(stored) - 1), self.width)
        at = first[:, None] + jnp.arange(META, dtype=jnp.int32)
        return jnp.where(stored[:, None], at, self.width).reshape(-1)


def _of_run(x: Float[Array, "*a g"], run: Int32[Array, " r"]) -> Float32[Array, "*a r"]:
    """Numbers of runs as those of their components; 0 for those of no run."""
    return jnp.take(x.astype(jnp.float32), run, axis=-1, mode="fill", fill_value=0)


def _laid_out(sizes: Integer[np.ndarray, " g"], bits: Integer[np.ndarray, " g"]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(bits of every run, run of every component, place of every component's code) of one layer."""
    run = np.repeat(np.arange(len(sizes)), sizes)
    of, place, end = bits[run], np.zeros(len(run), np.int64), OVERHEAD * int(((bits > 0) & (sizes > 0)).sum())
    for b in BITS[:0:-1]:
        where = np.flatnonzero(of == b)
        place[where] = end + b * np.arange(len(where))
        end += b * len(where)
    return np.where(sizes > 0, bits, 0), run, place
