"""Attention-Gate (arXiv 2410.12876): a reduced attention reads the prompt; σ of its logit says whether a head keeps a token.

Readings of what is open (no code, unpublished):
- p > 0.5 keeps; a head's first and last token always stay; decoded tokens are kept.
- The gate's attention is causal, as training by next tokens asks; the paper says global context.
"""

import numpy as np
from jaxtyping import Float, Int

from .softmax import softmax


def probability(x: Float[np.ndarray, "n e"], weights: dict, parts: int, *, causal: bool = True) -> Float[np.ndarray, "h n"]:
    """p of every token and KV head."""
    q, k, v = (
        np.stack(np.split(x.astype(np.float64) @ weights[name]["kernel"], parts, axis=1)) for name in ("q", "k", "v")
    )  # fmt: skip
    z = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
    seen = np.tril(np.ones(z.shape[1:], bool)) if causal else True
    out = np.concatenate(list(softmax(np.where(seen, z, -np.inf)) @ v), axis=1)
    return 1 / (1 + np.exp(-(out @ weights["out"]["kernel"] + weights["out"]["bias"]))).T


def kept(p: Float[np.ndarray, "n"], threshold: float = 0.5, *, forced: bool = True) -> Int[np.ndarray, "k"]:
    """Positions that one head keeps."""
    flags = p > threshold
    if forced:
        flags[[0, -1]] = True
    return np.flatnonzero(flags)
