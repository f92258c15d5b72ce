"""Expected Attention: the attention a Gaussian of future queries would pay (arXiv 2510.00636)."""

import numpy as np
from jaxtyping import Float

from .softmax import softmax


def query_moments(
    q_raw: Float[np.ndarray, "h g n d"], sinks: int = 4
) -> tuple[Float[np.ndarray, "h g d"], Float[np.ndarray, "h g d d"]]:
    """Mean and covariance (over the count) of the queries before the rotary embedding, the first `sinks` left out."""
    q = q_raw[:, :, sinks:].astype(np.float64)
    mean = q.mean(axis=2)
    centred = q - mean[:, :, None]
    return mean, np.einsum("hgni,hgnj->hgij", centred, centred) / q.shape[2]


def rotated_moments(
    mean: Float[np.ndarray, "h g d"], cov: Float[np.ndarray, "h g d d"], rbar: Float[np.ndarray, "d d"]
) -> tuple[Float[np.ndarray, "h g d"], Float[np.ndarray, "h g d d"]]:
    """mu' = Rbar mu, Sigma' = Rbar Sigma Rbar^T."""
    return mean @ rbar.T, rbar @ cov @ rbar.T


def expected_attention(
    mean: Float[np.ndarray, "h g d"],
    cov: Float[np.ndarray, "h g d d"],
    k: Float[np.ndarray, "h n d"],
    v: Float[np.ndarray, "h n d"],
    *,
    sinks: int = 4,
    covariance: bool = True,
    value_norm: bool = True,
    eps: float = 0.0,
) -> Float[np.ndarray, "h m"]:
    """u = (mean_g softmax_j(k.mu'/sqrt(d) + k^T Sigma' k/(2d)) + eps) ||v||, for the positions after the sinks.

    Moments are the rotated ones. `eps` enters with the value norm only. The sinks have no score: they are protected.
    """
    k, v, d = k[:, sinks:].astype(np.float64), v[:, sinks:].astype(np.float64), k.shape[-1]
    logits = np.einsum("hnd,hgd->hgn", k, mean) / np.sqrt(d)
    if covariance:
        logits = logits + np.einsum("hni,hgij,hnj->hgn", k, cov, k) / (2 * d)
    share = softmax(logits).mean(axis=1)
    return (share + eps) * np.linalg.norm(v, axis=-1) if value_norm else share
