"""Attention over keys and values in host memory, computed there: queries cross, outputs and log denominators come back."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int32

from kvjax.kernels.dispatch import compiles_for
from kvjax.placement.on_host import _DEVICE, _HOST, _on_host
from kvjax.types import Queries

#: Below every score, and finite; above every score with the other sign.
_LOW = np.float32(-1e30)


class HostPart(NamedTuple):
    """Keys, values and which of them are there, all in pinned host memory."""

    k: Float[Array, "r h n d"]
    v: Float[Array, "r h n d"]
    held: Bool[Array, "r h n"]


def to_host(k: Float[Array, "r h n d"], v: Float[Array, "r h n d"], held: Bool[Array, "r h n"]) -> HostPart:
    """Arrays moved to pinned host memory."""
    return HostPart(*jax.device_put((k, v, held), _HOST))


def host_attention(
    part: HostPart, q: Queries, now: Int32[Array, "r t"], window: int | None = None
) -> tuple[Float32[Array, "r h g t d"], Float32[Array, "r h g t"]]:
    """(out, lse) of softmax attention over the slots held; key j is at position j, before every query; 0 and -inf without any.

    Source: NEO, arXiv 2411.01142, the attention of requests whose cache is on the host. Differs: the host computes with XLA.
    """

    def attend(part: HostPart, q: Queries, now: Array) -> tuple[Array, Array]:
        return _attention(part, q, now, window)

    if compiles_for() == "cpu":  # one memory: nothing crosses
        return attend(jax.device_put(part, _DEVICE), q, now)
    return jax.device_put(_on_host(attend)(part, q, now), _DEVICE)


def crossing_nbytes(q: Queries) -> int:
    """Bytes of one `host_attention` of rows [r h g t d] from and to a device with a memory of its own.

    Queries and their positions go to the host, outputs and log denominators come back in float32.
    """
    r, h, g, t, d = q.shape
    return r * t * (h * g * (d * q.dtype.itemsize + d * 4 + 4) + 4)


def _attention(part: HostPart, q: Queries, now: Int32[Array, "r t"], window: int | None) -> tuple[Array, Array]:
    """What is computed, wherever: by arithmetic alone, since a constant is in the device's memory and `where` mixes no memories."""
    z = jnp.einsum("bhgtd,bhnd->bhgtn", q, part.k, preferred_element_type=jnp.float32) / np.float32(np.sqrt(q.shape[-1]))
    seen = part.held[:, :, None, None]
    if window is not None:
        at = jnp.cumsum(part.held | ~part.held, -1, dtype=jnp.int32)[:, :, None, None] - np.int32(1)
        seen = seen & (at > now[:, None, None, :, None] - np.int32(window))
    seen = seen.astype(jnp.float32)
    z = jnp.minimum(z, (np.float32(1) - np.float32(2) * seen) * _LOW)
    high = z.max(-1)
    p = jnp.exp(z - high[..., None]) * seen
    total = p.sum(-1)
    out = jnp.einsum("bhgtn,bhnd->bhgtd", p, part.v.astype(jnp.float32), preferred_element_type=jnp.float32)
    return out / jnp.maximum(total, np.float32(1e-30))[..., None], high + jnp.log(total)
