"""The average of the rotary matrices over a range of positions."""

import numpy as np
from jaxtyping import Float


def rotation(angles: Float[np.ndarray, "m"]) -> Float[np.ndarray, "d d"]:
    """The rotary matrix of one position in the half-split layout: channel i turns with channel i + d/2 by angles[i]."""
    cos, sin = np.diag(np.cos(angles)), np.diag(np.sin(angles))
    return np.block([[cos, -sin], [sin, cos]])


def mean_rotation(
    inverse_frequencies: Float[np.ndarray, "m"], start: int, count: int, scale: float = 1.0
) -> Float[np.ndarray, "d d"]:
    """Rbar = scale / count * sum_{p = start}^{start + count - 1} R(p): matrices are averaged, not angles.

    Rbar is no rotation: it shrinks the fast pairs. `scale` is the factor some rotary variants put on cos and sin.
    """
    return scale * np.mean([rotation(p * inverse_frequencies) for p in range(start, start + count)], axis=0)
