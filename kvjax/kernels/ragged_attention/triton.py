"""Ragged attention on a GPU by Triton: flash decoding whose number of splits follows each region's length."""

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
import jax_triton as jt
import triton

from kvjax.slot_positions import in_order

from . import split
from .twice import watching


@dataclasses.dataclass(frozen=True)
class Config:
    """Tiling.

    Attributes:
        programs: items that all regions together are cut into: twice the multiprocessors of an H100 or H200, less eight regions,
            so that every item of a layer of eight KV heads is under way at once.
        tile: bytes of 16-bit keys and values of one step, of which `stages` are in flight.
        stages, warps: of Triton's pipeline, and warps a program.
        items, width: of `combine`, items added up in a step and channels a program.
    """

    programs: int = 256
    tile: int = 32768
    stages: int = 3
    warps: int = 4
    items: int = 64
    width: int = 32

    def of(self, q, k) -> dict:
        """Slots of one step, and warps; float32 products hold more in registers and take fewer slots."""
        d, wide = q.shape[-1], precision(q.dtype, k.dtype) != "tf32"
        block = self.tile // (2 * triton.next_power_of_2(d) * (8 if wide else 2))
        return dict(BLOCK=min(128, max(16, block)), num_warps=self.warps * (2 if d > 128 else 1))


def refuses(q, k, *rest, **static) -> str | None:
    """Why these operands are not for this implementation, or None."""
    kinds = ("float32", "bfloat16", "float16")
    if q.shape[3] != 1:
        return f"takes one query a row, got {q.shape[3]}"
    if q.shape[2] > 16 or q.shape[4] > 256:
        return f"takes up to 16 query heads a KV head, of dimension up to 256; got {q.shape[2]} of {q.shape[4]}"
    if str(q.dtype) not in kinds or str(k.dtype) not in kinds:
        return f"takes {', '.join(kinds)}; got q {q.dtype} and k {k.dtype}"
    if q.shape[4] > 128 and precision(q.dtype, k.dtype) == "tf32x3":
        return f"takes {q.dtype} with {k.dtype} up to dimension 128 (registers), got {q.shape[4]}"
    if any(x.dtype != k.dtype for x in rest[:1] if jnp.issubdtype(x.dtype, jnp.floating)):
        return f"takes keys and values of one dtype, the keys are {k.dtype}"
    return None


@partial(jax.jit, static_argnames=("window", "config"))
def attention(q, k, v, pos, start, length, q_pos, bias=None, *, window: int | None, config: Config = Config()):
    """See `api.ragged_attention`."""
    return split_attention(q, k, v, pos, start, length, q_pos, bias, window=window, listed=0, config=config)


def split_attention(q, k, v, pos, where, length, q_pos, bias, *, window, listed: int, config: Config):
    """(out, lse) over regions that start at `where` [b h], or over `listed` slots `where` [b h listed]."""
    how = _products(q, k, window, config)
    how, bias = _biased(how, bias, q)
    ordered, pos = positions(pos, where)
    parts, shared = sharing(q, how["BLOCK"], config)
    how |= shared
    found = jt.triton_call(
        q, k, v, pos, where, length, q_pos, bias, kernel=split.attend, grid=parts[0].shape[:1], num_stages=config.stages,
        LISTED=listed, out_shape=parts, ORDERED=ordered, **how,
    )  # fmt: skip
    return combined(found, q, length, shared, config)


def sharing(q, block: int, config) -> tuple[tuple, dict]:
    """(shapes of what the items of `config.programs` programs leave, constants by which all kernels share out the lists)."""
    b, h, g, _, d = q.shape
    lists = b * h
    items = config.programs + lists
    shapes = tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((items, g, d), (items, g), (items, g)))
    return shapes, dict(R=lists, R2=triton.next_power_of_2(lists), G=g, D=d, BLOCK=block, PROGRAMS=config.programs)


def combined(parts, q, length, shared: dict, config):
    """(out, lse) from the items of all lists."""
    shapes = jax.ShapeDtypeStruct(q.shape, q.dtype), jax.ShapeDtypeStruct(q.shape[:-1], jnp.float32)
    grid = (shared["R"], shared["G"], triton.cdiv(shared["D"], config.width))
    return jt.triton_call(
        *parts, length, kernel=split.combine, grid=grid, out_shape=shapes, ITEMS=config.items, WIDTH=config.width, **shared
    )


@partial(jax.jit, static_argnames=("cap", "window", "config"))
def scores(q, k, pos, start, length, q_pos, bias=None, *, cap: int, window: int | None, config: Config = Config()):
    """See `api.ragged_scores`."""
    b, h, *_ = q.shape
    how, bias = _biased(_products(q, k, window, config), bias, q)
    ordered, pos = positions(pos, start)
    return jt.triton_call(
        q, k, pos, start, length, q_pos, bias, kernel=split.score, grid=(triton.cdiv(cap, how["BLOCK"]), b * h),
        out_shape=jax.ShapeDtypeStruct((*q.shape[:-1], cap), jnp.float32), CAP=int(cap), ORDERED=ordered, **how,
    )  # fmt: skip


attention_with_weights = watching(attention, scores)


def positions(pos, like) -> tuple:
    """Whether positions are places in a region, and those of slots, or an operand that is not read."""
    return in_order(pos), like if in_order(pos) else pos


def _biased(how: dict, bias, like) -> tuple:
    """The constants with whether there are biases, and those, or an operand that is not read."""
    return how | dict(BIASED=bias is not None), like if bias is None else bias


def _products(q, k, window: int | None, config: Config) -> dict:
    """Constants of the kernels that multiply, and their warps."""
    _, h, g, _, d = q.shape
    how = dict(H=h, G=g, D=d, D2=max(16, triton.next_power_of_2(d)), WINDOW=window or 0, SCALE=1 / math.sqrt(d))
    return how | dict(PRECISION=precision(q.dtype, k.dtype)) | config.of(q, k)


def precision(q, k) -> str:
    """How Triton is to multiply these dtypes, for errors of float32 products.

    TF32 holds every float16 and bfloat16 number, and two TF32 numbers hold all but the last two bits of a float32 one ("tf32x3");
    two float32 operands are multiplied as such ("ieee"), without tensor cores.
    """
    wide = (q.itemsize == 4) + (k.itemsize == 4)
    return ("tf32", "tf32x3", "ieee")[wide]
