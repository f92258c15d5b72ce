"""Ragged attention on Hopper by Pallas Mosaic GPU: bulk tensor copies into shared memory, warpgroup products, splits by length.

XLA makes the plan (as `split.plan` does) and adds up a region's items; between them each program attends over the blocks of one
item, its query rows padded to the 64 that a warpgroup multiplies.
"""

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from .items import LOW, combine, plan

#: Rows of a warpgroup's product; rows that can be real.
ROWS, REAL = 64, 16


@dataclasses.dataclass(frozen=True)
class Config:
    """Tiling.

    Attributes:
        programs: items that all regions are cut into; one fills a multiprocessor: 132 of an H100 or H200, less eight regions.
        block: slots of a step.   stages: steps in flight.
        interpret: run on the CPU, by Pallas' interpreter.
    """

    programs: int = 124
    block: int = 64
    stages: int = 4
    interpret: bool = False


def refuses(q, k, v, pos, start, length, q_pos, bias=None, *, window: int | None = None) -> str | None:
    """Why these operands are not for this implementation, or None."""
    del pos, start, length, q_pos
    if bias is not None:
        return "takes no bias"
    capability = getattr(jax.devices()[0], "compute_capability", None)
    if capability not in (None, "9.0"):
        return f"needs a Hopper GPU (compute capability 9.0), this one has {capability}"
    if q.shape[3] != 1 or window is not None:
        return f"takes one query a row and no window, got {q.shape[3]} and window {window}"
    if q.shape[2] > REAL or q.shape[4] not in (64, 128):
        return f"takes up to {REAL} query heads a KV head, of dimension 64 or 128; got {q.shape[2]} of {q.shape[4]}"
    if str(q.dtype) not in ("bfloat16", "float16") or not q.dtype == k.dtype == v.dtype:
        return f"takes bfloat16 or float16, one for all; got q {q.dtype}, k {k.dtype} and v {v.dtype}"
    return None


@partial(jax.jit, static_argnames=("window", "config"))
def attention(q, k, v, pos, start, length, q_pos, bias=None, *, window: int | None, config: Config = Config()):
    """See `api.ragged_attention`."""
    del pos, q_pos, bias, window
    b, h, g, _, d = q.shape
    regions = b * h
    region, slot, blocks, held = plan(start.reshape(-1), length.reshape(-1), config.block, config.programs)
    rows = jnp.pad(q.reshape(regions, g, d), ((0, 0), (0, ROWS - g), (0, 0)))
    part, high, total = _split(rows, k, v, jnp.minimum(region, regions - 1), slot, blocks, held, config)
    out, lse = combine(part[:, :g], high[:, :g], total[:, :g], region[None, :] == jnp.arange(regions)[:, None])
    return out.reshape(q.shape).astype(q.dtype), lse.reshape(q.shape[:-1])


def _split(rows, k, v, region, slot, blocks, held, config: Config):
    """(out [items 16 d], high, total [items 64]) of an online softmax for each item."""
    d, items, block, stages = rows.shape[-1], region.size, config.block, config.stages
    tiles = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))

    def shared(*shape):
        return plgpu.SMEM(shape, k.dtype, transforms=tiles)

    kernel = plgpu.kernel(
        partial(_attend, scale=math.log2(math.e) / math.sqrt(d), config=config),
        out_type=[
            jax.ShapeDtypeStruct((items, REAL, d), jnp.float32),
            *[jax.ShapeDtypeStruct((items, ROWS), jnp.float32)] * 2,
        ],
        grid=(items,), grid_names=("item",),
        scratch_types=[
            shared(ROWS, d), shared(stages, block, d), shared(stages, block, d), shared(ROWS, block),
            plgpu.SMEM((ROWS, d), jnp.float32), plgpu.SMEM((ROWS,), jnp.float32), plgpu.SMEM((ROWS,), jnp.float32),
            plgpu.Barrier(num_barriers=1), plgpu.Barrier(num_barriers=stages), plgpu.Barrier(num_barriers=stages),
        ],
        **(dict(interpret=plgpu.InterpretGPUParams()) if config.interpret else {}),
    )  # fmt: skip
    return kernel(rows, k, v, region, slot, blocks, held)


def _attend(
    rows, k, v, region, slot, blocks, held, out, high, total,
    q_here, k_here, v_here, p_here, o_here, m_here, s_here, q_came, k_came, v_came, *, scale: float, config: Config,
):  # fmt: skip
    """One item."""
    item, block, d = lax.axis_index("item"), config.block, q_here.shape[-1]
    first, count, left = slot[item], blocks[item], held[item]
    column = plgpu.broadcasted_iota(jnp.int32, (ROWS, block), 1, layout=plgpu.Layout.WGMMA)

    def by_row(value):
        return plgpu.layout_cast(jnp.full((ROWS,), value, jnp.float32), plgpu.Layout.WGMMA.reduce(1))

    def fetch(i):
        stage, at = lax.rem(i, config.stages), pl.multiple_of(first + i * block, 8)
        plgpu.copy_gmem_to_smem(k.at[pl.ds(at, block)], k_here.at[stage], k_came.at[stage])
        plgpu.copy_gmem_to_smem(v.at[pl.ds(at, block)], v_here.at[stage], v_came.at[stage])

    def step(i, carry):
        o, m, s = carry
        stage = lax.rem(i, config.stages)
        plgpu.barrier_wait(k_came.at[stage])

        def products(acc):
            plgpu.wgmma(acc, q_here, k_here.at[stage].transpose((1, 0)))
            return acc[...]

        scores = pl.run_scoped(products, plgpu.ACC((ROWS, block), jnp.float32)) * scale
        scores = jnp.where(column < left - i * block, scores, -jnp.inf)
        new = jnp.maximum(m, scores.max(axis=1))
        decay = jnp.exp2(m - new)
        weights = jnp.exp2(scores - lax.broadcast_in_dim(new, scores.shape, [0]))
        p_here[...] = weights.astype(p_here.dtype)
        plgpu.barrier_wait(v_came.at[stage])

        @pl.when(left - i * block < block)
        def _():
            row = plgpu.broadcasted_iota(jnp.int32, (block, d), 0, layout=plgpu.Layout.WGMMA)
            values = plgpu.layout_cast(v_here[stage], plgpu.Layout.WGMMA)
            v_here[stage] = jnp.where(row < left - i * block, values, jnp.zeros_like(values))

        plgpu.commit_smem()

        def weighed(acc):
            plgpu.wgmma(acc, p_here, v_here.at[stage])
            return acc[...]

        added = pl.run_scoped(weighed, plgpu.ACC((ROWS, d), jnp.float32))
        plgpu.commit_smem()  # every warp is done with this stage
        pl.when(i + config.stages < count)(lambda: fetch(i + config.stages))
        return o * lax.broadcast_in_dim(decay, o.shape, [0]) + added, new, s * decay + weights.sum(axis=1)

    @pl.when(count > 0)
    def _():
        plgpu.copy_gmem_to_smem(rows.at[region[item]], q_here, q_came.at[0])
        for i in range(config.stages):
            pl.when(i < count)(lambda i=i: fetch(jnp.int32(i)))
        plgpu.barrier_wait(q_came.at[0])
        none = plgpu.layout_cast(jnp.zeros((ROWS, d), jnp.float32), plgpu.Layout.WGMMA)
        o_here[...], m_here[...], s_here[...] = lax.fori_loop(0, count, step, (none, by_row(LOW), by_row(0.0)))
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(o_here.at[pl.ds(0, REAL)], out.at[item])
        plgpu.copy_smem_to_gmem(m_here, high.at[item])
        plgpu.copy_smem_to_gmem(s_here, total.at[item])
        plgpu.wait_smem_to_gmem(0)
