"""Scores from codes on a GPU by Triton.

No table of products is made: a look-up would read g float32 entries of it where a centroid is e 16-bit numbers (g = 4, e = 4: 16
bytes against 8), and a table of 8192 centroids is 33 MB a layer that a pass of its own would have to write. Tensor cores multiply
what is decoded; the products of 16-bit operands are exact, whatever their kinds (TF32 holds both).
"""

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
import jax_triton as jt
import triton

from kvjax.kernels.ragged_attention.triton import positions, precision

from . import decoded


@dataclasses.dataclass(frozen=True)
class Config:
    """Tiling: decoded numbers of a program's one step, and its warps; float32 products hold their operands in registers."""

    tile: int = 8192
    warps: int = 4

    def of(self, d: int, precision: str) -> dict:
        """Slots a program scores, and its warps."""
        fewer, more = (1, 1) if precision == "tf32" else (4, 2)
        block = self.tile // fewer // triton.next_power_of_2(d)
        return dict(BLOCK=min(128, max(16, block)), num_warps=self.warps * more)


def refuses(q, codes, codebook, *rest, **static) -> str | None:
    """Why these operands are not for this implementation, or None."""
    kinds = ("float32", "bfloat16", "float16")
    if q.shape[3] != 1:
        return f"takes one query a row, got {q.shape[3]}"
    if q.shape[2] > 16 or q.shape[4] > 256:
        return f"takes up to 16 query heads a KV head, of dimension up to 256; got {q.shape[2]} of {q.shape[4]}"
    if str(q.dtype) not in kinds or str(codebook.dtype) not in kinds:
        return f"takes {', '.join(kinds)}; got q {q.dtype} and a codebook {codebook.dtype}"
    if str(codes.dtype) not in ("uint8", "uint16"):
        return f"takes codes of uint8 or uint16, got {codes.dtype}"
    return None


@partial(jax.jit, static_argnames=("cap", "window", "config"))
def scores(q, codes, codebook, pos, start, length, q_pos, *, cap: int, window: int | None, config: Config = Config()):
    """See `api.codebook_scores`."""
    (b, h, g, _, d), (_, m1, c, e), m = q.shape, codebook.shape, codes.shape[1]
    how = precision(q.dtype, codebook.dtype)
    tiling, wide = config.of(d, how), triton.next_power_of_2(e)
    ordered, pos = positions(pos, start)
    return jt.triton_call(
        q, codes, codebook, pos, start, length, q_pos, kernel=decoded.score, grid=(triton.cdiv(cap, tiling["BLOCK"]), b * h),
        out_shape=jax.ShapeDtypeStruct((*q.shape[:-1], cap), jnp.float32), H=h, G=g, M=m, C=c, E=e, E2=wide,
        M2=max(triton.next_power_of_2(m), 16 // wide), SHARED=m1 == 1, CAP=int(cap), WINDOW=window or 0,
        SCALE=1 / math.sqrt(d), PRECISION=how, ORDERED=ordered, **tiling,
    )  # fmt: skip
