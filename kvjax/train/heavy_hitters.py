"""What a cache of fixed size would hold at each token of a text that is read whole (H2O, the host of LESS)."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float32, Int32


def held_by_heavy_hitters(z: Float32[Array, "b h g t t"], *, slots: int, recent: int) -> Bool[Array, "b h t t"]:
    """Which keys j <= i query i still sees, its own among them, where a head drops one as soon as it has more than `slots`.

    What goes has received the least attention, summed over the queries since it came, each query's taken over what it saw; the last
    `recent` tokens do not go, and of equals the later goes. It has no derivative.

    Args:
        z: attention logits of all queries and keys; those of j > i are not read.

    Source: H2O, arXiv 2306.14048, token by token as it is served.
    """
    t = z.shape[-1]
    j = jnp.arange(t, dtype=jnp.int32)

    def step(state: tuple[Array, Array], at: tuple[Int32[Array, ""], Array]) -> tuple[tuple[Array, Array], Array]:
        (held, scores), (i, row) = state, at
        seen = held | (j == i)
        a = jax.nn.softmax(jnp.where(seen[:, :, None], row, -jnp.inf), axis=-1).mean(2)
        scores = scores + a
        may_go = jnp.where(seen & (j <= i - recent), scores, jnp.inf)
        last = t - 1 - jnp.argmin(may_go[..., ::-1], axis=-1)
        goes = (j == last[..., None]) & (seen.sum(-1, keepdims=True) > slots)
        return (seen & ~goes, scores), seen

    nothing = jnp.zeros((*z.shape[:2], t), bool), jnp.zeros((*z.shape[:2], t), jnp.float32)
    _, seen = lax.scan(step, nothing, (j, jnp.moveaxis(lax.stop_gradient(z), 3, 0)))
    return jnp.moveaxis(seen, 0, 2)
