"""Maps of queries and keys whose products stand for attention to what is no longer held (LESS)."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Float32, PyTree

from kvjax.protocols import Decoder

_EXACT = lax.Precision.HIGHEST


def gelu(x: Float[Array, "*a"]) -> Float[Array, "*a"]:
    """x Φ(x), exactly."""
    return jax.nn.gelu(x, approximate=False)


def query_features(q: Float[Array, "b h g t d"], weights: PyTree) -> Float32[Array, "b h g t r"]:
    """φ(q) = |gelu(gelu(q W1) W2)| of rotated queries, not divided by sqrt(d).

    Args:
        weights: of one layer: {"up": W1 [h g d c], "down": W2 [h g c r]}.
    """
    up = gelu(jnp.einsum("bhgtd,hgdc->bhgtc", q.astype(jnp.float32), weights["up"], precision=_EXACT))
    return jnp.abs(gelu(jnp.einsum("bhgtc,hgcr->bhgtr", up, weights["down"], precision=_EXACT)))


def key_features(k: Float[Array, "b h n d"], weights: PyTree) -> Float32[Array, "b h n r"]:
    """ψ(k) = |k' + (k' Wi) s2|, k' = |s1| gelu(gelu(k W1) W2), of rotated keys.

    Args:
        weights: of one layer: {"up": W1 [h d c], "down": W2 [h c r], "mix": Wi [h r r], "scale": s1 [h r], "mix_scale": s2 [h r]}.
    """
    up = gelu(jnp.einsum("bhnd,hdc->bhnc", k.astype(jnp.float32), weights["up"], precision=_EXACT))
    x = gelu(jnp.einsum("bhnc,hcr->bhnr", up, weights["down"], precision=_EXACT))
    x = jnp.abs(weights["scale"])[:, None] * x
    return jnp.abs(x + jnp.einsum("bhnr,hrs->bhns", x, weights["mix"], precision=_EXACT) * weights["mix_scale"][:, None])


def side_shapes(model: Decoder, rank: int, hidden: int) -> dict[str, dict[str, tuple[int, ...]]]:
    """Shapes of the weights of all layers."""
    layers, h, g, d = model.layers, model.heads, model.groups, model.head_dim
    of_keys = {
        "up": (layers, h, d, hidden), "down": (layers, h, hidden, rank), "mix": (layers, h, rank, rank),
        "scale": (layers, h, rank), "mix_scale": (layers, h, rank),
    }  # fmt: skip
    return {"q": {"up": (layers, h, g, d, hidden), "down": (layers, h, g, hidden, rank)}, "k": of_keys}


def init_side_maps(key: Array, model: Decoder, rank: int = 8, hidden: int = 512) -> PyTree:
    """Untrained weights: {"q": ..., "k": ...}, each leaf [l, ...]; scales 1e-4: almost nothing is added.

    Matrices of m rows and n columns are uniform within sqrt(6 / (m + n)) of 0, as in the release's training.
    """
    shapes = side_shapes(model, rank, hidden)
    keys = iter(jax.random.split(key, 7))

    def drawn(path, shape):
        key, bound = next(keys), (6 / (shape[-2] + shape[-1])) ** 0.5
        if "scale" in jax.tree_util.keystr(path):
            return jnp.full(shape, 1e-4)
        return jax.random.uniform(key, shape, minval=-bound, maxval=bound)

    return jax.tree_util.tree_map_with_path(drawn, shapes, is_leaf=lambda x: isinstance(x, tuple))


def check_side_maps(weights: PyTree, model: Decoder) -> None:
    """Raise ValueError where the weights are not this model's, or a layer has a sliding window."""
    if any(window is not None for window in model.windows):
        raise ValueError(f"what is absorbed is read from any distance: LESS needs full attention, not the windows {model.windows}")
    given = jax.tree.map(jnp.shape, weights)
    try:
        hidden, rank = given["k"]["down"][-2:]
    except (KeyError, TypeError, ValueError):
        hidden, rank = "c", "r"
    wanted = side_shapes(model, rank, hidden)
    if given != wanted:
        advice = "use those trained with it, or init_side_maps"
        raise ValueError(f"maps of LESS for this model have shapes {wanted}; got {given}: {advice}")
