"""StreamingLLM with in-cache positions (arXiv 2309.17453): keys are stored unrotated and rotated by their rank."""

import numpy as np
from jaxtyping import Float, Int


def held_before_append(held: Int[np.ndarray, "n"], new: int, *, sinks: int, recent: int) -> Int[np.ndarray, "m"]:
    """Slots 0..s-1 and S-r+c..S-1 of the S held, so that c new tokens fit in s + r; everything if they already do."""
    size = len(held)
    if size + new <= sinks + recent:
        return held
    tail = min(size, max(sinks, size - recent + new))
    return np.concatenate([held[:sinks], held[tail:]])


def rotated_logits(
    q: Float[np.ndarray, "2"], k: Float[np.ndarray, "n 2"], angle: float, query_at: int, keys_at: Int[np.ndarray, "n"]
) -> Float[np.ndarray, "n"]:
    """q . R(key position - query position) k for one rotary pair, unscaled: only the distance matters."""
    turn = angle * (np.asarray(keys_at) - query_at)
    cos, sin = np.cos(turn), np.sin(turn)
    rotated = np.stack([cos * k[:, 0] - sin * k[:, 1], sin * k[:, 0] + cos * k[:, 1]], axis=-1)
    return rotated @ q
