"""Axis letters and array types: the only shape table of the library.

    b  rows of a batch            l  layers                 h  KV heads
    g  query heads per KV head    t  new tokens             n  prompt positions, or the slots of a head
    d  head dimension             e  model width            s  slots of the packed pool
    w  observation window         v  vocabulary

Einsum strings use the same letters.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Float32, Int32, Integer, PyTree

Queries = Float[Array, "b h g t d"]
Keys = Float[Array, "b h n d"]
Values = Float[Array, "b h n d"]
Scores = Float32[Array, "b h n"]
Mask = Bool[Array, "b h n"]
Positions = Int32[Array, "b h n"]
#: JAX's, or NumPy's in a CPU's memory.
Indices = Int32[Array, "..."] | Int32[np.ndarray, "..."]
Budget = Int32[Array, "l b h"]
Regions = Int32[Array, "l b h"]
#: Of every slot of a pool; [s, 0] where a slot's position is its place in its region (`kvjax.slot_positions`).
SlotPositions = Integer[Array, " s"] | Integer[Array, "s 0"]
Logits = Float32[Array, "b v"]

#: A layer's index: a loop over layers makes it data.
Layer = int | Int32[Array, ""]
#: A number that is a pytree leaf: a Python number, a traced scalar, or the placeholder a pytree transformation puts there.
Number = Any
#: A calibrated array that is a pytree leaf, or the placeholder a pytree transformation puts there.
Table = Any
#: Beside an array's type: the shape or the placeholder that stands for it in a pytree of descriptions.
Leaf = Any
#: A rule on arrays that is a field of a stage: pooling, a reduction over the heads of a group, a way to share or round.
Function = Callable[..., PyTree]


def table() -> Table:
    """A calibrated table as a field of a stage: a leaf; repr and equality rest on the stage's static `origin` instead."""
    return struct.field(repr=False, compare=False)


def later_table() -> Table:
    """A `table` behind fields that have defaults; None until it is given."""
    return struct.field(default=None, repr=False, compare=False)


def position_dtype(max_positions: int) -> DTypeLike:
    """The dtype of stored positions: two bytes a slot where the model's context allows."""
    return jnp.uint16 if max_positions <= 1 << 16 else jnp.int32


#: Slots by which every region is aligned. Tensor-memory copies need 8; finer than a 64-slot page wastes less.
ALIGN = 8
#: Slots that a loop over a region takes at a time.
BLOCK = 256
#: Slots kept free at the end of a pool, so that a block that starts in the last region never runs off the end.
SLACK = BLOCK


#: Size classes a power of two: of pools that lie (at most 1.6% beyond what is asked for), and of pools that tokens are appended to
#: (6.25%), of which every class is a program.
AT_REST, DECODING = 64, 16
#: Slots between two size classes at most: beyond eight million slots memory is worth more than a program.
WIDEST_CLASS = 1 << 19


def size_class(slots: int, steps: int = AT_REST) -> int:
    """Round up to one of `steps` classes a power of two, so that few pool shapes, hence few programs, exist.

    At most 1/steps more than asked (1.6% at 64), and at most `WIDEST_CLASS` slots; never below 64.
    """
    slots = max(int(slots), 64)
    unit = max(ALIGN, 1 << max(0, (slots - 1).bit_length() - 1 - (steps.bit_length() - 1)))
    unit = min(unit, WIDEST_CLASS)
    return -(-slots // unit) * unit


def power_of_two(n: int) -> int:
    """n rounded up to a power of two, at least 64: sizes that seldom change, so that few programs exist."""
    return 1 << max(6, (int(n) - 1).bit_length())
