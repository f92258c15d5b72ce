"""The plan that Triton programs make, as arrays."""

import jax
import jax.numpy as jnp
import jax_triton as jt
import triton
import triton.language as tl

from kvjax.kernels.ragged_attention.split import plan


@triton.jit
def _show(length, items, ends, R: tl.constexpr, R2: tl.constexpr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr):
    r, _, mine, until = plan(length, R, R2, BLOCK, PROGRAMS)
    tl.store(items + r, mine, mask=r < R)
    tl.store(ends + r, until, mask=r < R)


def planned(length, *, block: int, programs: int):
    """(items, items up to the end) of each list."""
    r = length.size
    found = jax.ShapeDtypeStruct((r,), jnp.int32)
    how = dict(R=r, R2=triton.next_power_of_2(r), BLOCK=block, PROGRAMS=programs)
    return jt.triton_call(length, kernel=_show, grid=(1,), out_shape=(found, found), **how)
