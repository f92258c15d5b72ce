"""What cutting a layer's cache does to its attention output, along the trajectory of the full cache.

Axis letters: l layers, q query heads of a layer, o = q·d, e model width.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32

from kvjax.cache.kv_cache import KVCache
from kvjax.calibrate.attention_rows import row_slots, rows_of, watch
from kvjax.calibrate.layer_error import relative_error
from kvjax.compress.run import compress
from kvjax.policy import Policy
from kvjax.prefill.run import prefill


def projected(
    rows: Float32[Array, "q n"], v: Float[Array, "h n d"], weight: Float[Array, "e o"], keep: Bool[Array, " n"]
) -> Float32[Array, " e"]:
    """W_O Σ_j a_j v_j with the attention rows restricted to `keep`: the softmax over those slots alone."""
    a = jnp.where(keep, rows, 0.0)
    a = a / jnp.maximum(a.sum(-1, keepdims=True), jnp.finfo(jnp.float32).tiny)
    out = jnp.einsum("hgn,hnd->hgd", a.reshape(v.shape[0], -1, a.shape[-1]), v.astype(jnp.float32))
    return weight.astype(jnp.float32) @ out.reshape(-1)


@jax.jit
def _outputs(params, cache: KVCache, keep: Bool[Array, "l n"]) -> tuple[Float32[Array, "l e"], Float32[Array, "l e"]]:
    """Each layer's attention output of the last step over all slots, and over those in `keep`."""
    full, part = [], []
    for layer, (weights, rows) in enumerate(zip(params["layers"], rows_of(cache), strict=True)):
        slots = cache.start[layer, 0][:, None] + jnp.arange(rows.shape[-1])
        v, w = cache.placement.take(cache.v, slots), weights["attention"]["o"]["weight"]
        full.append(projected(rows, v, w, jnp.ones_like(keep[layer])))
        part.append(projected(rows, v, w, keep[layer]))
    return jnp.stack(full), jnp.stack(part)


def _kept(lm, pre: object, policy: Policy, steps: int) -> Bool[np.ndarray, "l n"]:
    """Positions that the compressed cache would hold: what the policy keeps of the prompt, and everything generated."""
    cache, length = compress(pre, policy), pre.lengths[0]
    keep = np.tile(np.arange(row_slots(length, steps)) >= length, (lm.decoder.layers, 1))
    for layer in range(lm.decoder.layers):
        keep[layer, cache.kept(layer)[0][0]] = True
    return keep


def sample_errors(
    lm, ids: Sequence[int], policy: Policy, *, steps: int, stop: Sequence[int], eps: float
) -> Float[np.ndarray, " l"]:
    """Relative output errors of one prompt, summed over the decode steps, along the trajectory of the full cache."""
    pre = prefill(lm, list(ids), needs=policy)
    keep, total = jnp.asarray(_kept(lm, pre, policy, steps)), np.zeros(lm.decoder.layers)
    if int(pre.rows[0].logits.argmax()) in stop:
        return total
    for _, cache in watch(lm, pre, None, steps=steps, stop=stop):
        pairs = zip(*(np.asarray(x) for x in _outputs(lm.params, cache, keep)), strict=True)
        total += [relative_error(full, part, eps) for full, part in pairs]
    return total
