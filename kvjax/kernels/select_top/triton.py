"""The k largest on a GPU by Triton: one program a row, where a loop of XLA's asks the host after every halving."""

from functools import partial

import jax
import jax.numpy as jnp
import jax_triton as jt

from kvjax.kernels.row_tiling import Config

from . import digits


def refuses(rank, k) -> str | None:
    """Why these operands are not for this implementation, or None."""
    del k
    return None if rank.size else f"takes at least one row and one key, got {rank.shape}"


@partial(jax.jit, static_argnames="config")
def select(rank, k, *, config: Config = Config()):
    """See `api.select_top`; rows [r, n]."""
    rows, n = rank.shape
    mask = jax.ShapeDtypeStruct(rank.shape, jnp.int8)
    return jt.triton_call(rank, k, kernel=digits.select, out_shape=mask, grid=(rows,), N=n, **config.of(n)).astype(bool)
