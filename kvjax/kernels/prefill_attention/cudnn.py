"""Prefill attention on an NVIDIA GPU by cuDNN's flash attention: rows over all keys before them, and rows over each other.

To cuDNN a causal mask begins at the first key, and how many keys there are may be data. Rows at an offset that is data see
every key before it, and each other causally: two calls, put together by their denominators, and one where the rows are the
prompt. `jax.nn.dot_product_attention` rounds denominators to the output's dtype, and evidence is made of them: what it calls
for cuDNN, which leaves them in float32, is called here.
"""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax._src.cudnn.fused_attention_stablehlo import MaskType, check_cudnn_version, dot_product_attention
from jaxtyping import Array, Float, Float32, Int32

from . import xla

#: Largest head dimension that cuDNN takes on every card since Ampere.
WIDEST = 128


def refuses(q, k, v, offset, length=None, *, window: int | None) -> str | None:
    """Why these operands are not for this implementation, or None."""
    del length
    if window is not None:
        return f"has no window behind an offset, got one of {window}"
    if str(q.dtype) not in ("bfloat16", "float16") or not q.dtype == k.dtype == v.dtype:
        return f"takes bfloat16 or float16, all alike; got {q.dtype}, {k.dtype} and {v.dtype}"
    if q.shape[-1] % 8 or q.shape[-1] > WIDEST:
        return f"takes head dimensions that are multiples of 8 up to {WIDEST}, got {q.shape[-1]}"
    try:
        check_cudnn_version()
    except RuntimeError as error:
        return f"needs cuDNN: {error}"
    return None


@partial(jax.jit, static_argnames="window")
def attention(q, k, v, offset, *, window: None):
    """See `api.prefill_attention`."""
    return in_two(q, k, v, offset, _causal, _over)


@partial(jax.jit, static_argnames="window")
def attention_and_column_sums(q, k, v, offset, length, *, window: None):
    """See `api.attention_and_column_sums`; cuDNN has no sums of columns, so that they are XLA's."""
    out, lse = attention(q, k, v, offset, window=window)
    return out, lse, xla.column_sums(q, k, lse, offset, length, window=window)


def in_two(q, k, v, offset, causal: Callable, over: Callable):
    """Attention of rows that begin at `offset`, from `causal` attention among them and attention `over` so many first keys."""
    b, h, g, t, d = q.shape
    rows = q.reshape(b, h * g, t, d)
    if k.shape[2] == t:
        out, lse = causal(rows, k, v)
    else:
        own = [lax.dynamic_slice_in_dim(x, offset, t, axis=2) for x in (k, v)]
        before = over(rows, k, v, jnp.full(b, jnp.maximum(offset, 1), jnp.int32))
        out, lse = _joined(causal(rows, *own), before, offset > 0)
    return out.reshape(q.shape).astype(q.dtype), lse.reshape(q.shape[:-1])


def _joined(own, before, there):
    """out = sum_p e^(lse_p - lse) out_p,  lse = log sum_p e^lse_p  over the parts p; `there`: whether anything is before."""
    (out, lse), (before, before_lse) = own, before
    before_lse = jnp.where(there, before_lse, -jnp.inf)
    both = jnp.logaddexp(lse, before_lse)

    def share(part, of):
        return jnp.exp(of - both)[..., None] * part.astype(jnp.float32)

    return share(out, lse) + jnp.where(there, share(before, before_lse), 0), both


def _causal(q: Float[Array, "b r t d"], k: Float[Array, "b h t d"], v: Float[Array, "b h t d"]):
    return _cudnn(q, k, v, None, MaskType.CAUSAL)


def _over(q: Float[Array, "b r t d"], k: Float[Array, "b h n d"], v: Float[Array, "b h n d"], count: Int32[Array, " b"]):
    return _cudnn(q, k, v, count, MaskType.PADDING)


def _cudnn(q, k, v, count, mask: MaskType) -> tuple[Float[Array, "b r t d"], Float32[Array, "b r t"]]:
    lengths = {} if count is None else {"q_seqlen": jnp.full_like(count, q.shape[2]), "kv_seqlen": count}
    how = dict(scale=1 / math.sqrt(q.shape[-1]), mask_type=mask, qkv_layout="BNTH", return_residual=True)
    return dot_product_attention(q, k, v, **lengths, **how)
