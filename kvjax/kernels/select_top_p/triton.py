"""Mass selection on a GPU by Triton: one program a row instead of thirty-one reductions over all of them."""

from functools import partial

import jax
import jax.numpy as jnp
import jax_triton as jt

from kvjax.kernels.row_tiling import Config

from . import digits
from .xla import SLOP


def refuses(scores, tau) -> str | None:
    """Why these operands are not for this implementation, or None."""
    del tau
    return None if scores.size else f"takes at least one row and one slot, got {scores.shape}"


@partial(jax.jit, static_argnames="config")
def select(scores, tau, *, config: Config = Config()):
    """See `api.select_top_p`."""
    *rows, n = scores.shape
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (scores.shape, tuple(rows))]
    grid = (scores.size // n,)
    weights, lse = jt.triton_call(
        scores, tau, kernel=digits.select, out_shape=shapes, grid=grid, N=n, SLOP=SLOP, **config.of(n)
    )
    return weights, lse
