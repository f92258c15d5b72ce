"""More slots for layers whose keys change when the prompt is read in blocks."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from kvjax.allocate import exact_alloc
from kvjax.prefill import AShape, MInference
from kvjax.prefill.run import prefill
from kvjax.protocols import LanguageModel
from kvjax.types import Keys


def sensitivity(lm: LanguageModel, ids: list[int], *, window: int = 4096, sinks: int = 128) -> Float[np.ndarray, " l"]:
    """Mean cosine of a layer's keys with those of a prefill that sees `sinks` first tokens and `window` last: low is sensitive.

    Source: EpiCache, arXiv 2509.17396, section 3.4.
    """
    full = prefill(lm, ids, needs=frozenset()).rows[0]
    masked = prefill(lm, ids, needs=frozenset(), attention=MInference(AShape(sinks, window))).rows[0]
    return np.array([_cosine(a[:, :, : len(ids)], b[:, :, : len(ids)]) for a, b in zip(full.k, masked.k, strict=True)])


def _cosine(a: Keys, b: Keys) -> float:
    a, b = (x.astype(jnp.float32) for x in (a, b))
    return float(((a * b).sum(-1) / (jnp.linalg.norm(a, axis=-1) * jnp.linalg.norm(b, axis=-1))).mean())


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
