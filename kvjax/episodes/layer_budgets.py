"""More slots for layers whose keys change when the prompt is read in blocks."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int

from kvjax.allocate import exact_alloc
from kvjax.prefill import StarAttention
from kvjax.prefill.run import prefill
from kvjax.protocols import LanguageModel
from kvjax.types import Keys


def sensitivity(
    lm: LanguageModel, ids: list[int], *, block: int = 4096, sinks: int = 128, span: int = 100
) -> Float[np.ndarray, " l"]:  # fmt: skip
    """Mean cosine of a layer's keys with those of a prefill in blocks: low is sensitive.

    Args:
        lm: a language model.   ids: a long text.   block: tokens of a block, which sees itself and the last half of the one before.
        sinks: first tokens that every block sees, at most half a block.   span: tokens whose keys of a head are one vector.

    Source: EpiCache, arXiv 2509.17396, section 3.4; the released profile's sizes.
    """
    blocks = StarAttention(block, anchor=sinks, overlap=block // 2)
    full, masked = (prefill(lm, ids, needs=frozenset(), **how).rows[0].k for how in ({}, {"attention": blocks}))
    return np.array([_cosine(a[:, :, : len(ids)], b[:, :, : len(ids)], span) for a, b in zip(full, masked, strict=True)])


def _cosine(a: Keys, b: Keys, span: int) -> float:
    """Mean over heads and spans, the last one maybe shorter."""
    a, b = (_spans(x.astype(jnp.float32), span) for x in (a, b))
    return float(((a * b).sum(-1) / (jnp.linalg.norm(a, axis=-1) * jnp.linalg.norm(b, axis=-1))).mean())


def _spans(x: Keys, span: int) -> Float32[Array, "b h m e"]:
    """The keys of each `span` tokens as one vector, 0 behind the last."""
    x = jnp.pad(x, ((0, 0), (0, 0), (0, -x.shape[2] % span), (0, 0)))
    return x.reshape(*x.shape[:2], -1, span * x.shape[3])


def shares(sens: Float[np.ndarray, " l"], power: float) -> Float[np.ndarray, " l"]:
    """w_l = (1 - s_l)^power, s min-max scaled; all 1 where every layer is as sensitive."""
    spread = sens.max() - sens.min()
    return np.ones_like(sens) if spread == 0 else (1 - (sens - sens.min()) / spread) ** power


def layer_budgets(sens: Float[np.ndarray, " l"], budget: int, power: float = 1.1) -> Int[np.ndarray, " l"]:
    """b_l ∝ w_l, at least max(1, budget // 4), Σ b_l = budget · L.

    Source: EpiCache, arXiv 2509.17396, section 3.4. Differs: the release truncates w_l / Σ w · budget · L and lifts what is below
    the bound, and so gives out more than the total.
    """
    layers, least = len(sens), max(1, budget // 4)
    w = jnp.asarray(shares(np.asarray(sens, np.float64), power), jnp.float32)

    def whole(x):
        return jnp.full(layers, x, jnp.int32)

    return np.asarray(exact_alloc(w, jnp.int32(budget * layers), whole(least), whole(budget * layers)))
