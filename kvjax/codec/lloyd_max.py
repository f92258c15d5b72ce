"""Lloyd-Max levels: the 2^b numbers that code a random coordinate with the least squared error."""

from functools import cache

import numpy as np
from jaxtyping import Float
from scipy.special import betainc, betaln, erf

#: Sweeps after which it ends, and the change of a level below which it does.
_SWEEPS, _CHANGE = 200_000, 1e-13


@cache
def sphere_levels(bits: int, d: int) -> Float[np.ndarray, " c"]:
    """Levels for one coordinate of a random unit vector of d: density ∝ (1 - x²)^((d-3)/2) on [-1, 1]; float64, ascending."""
    log_z = betaln(0.5, (d - 1) / 2)

    def mass(x):
        return np.sign(x) * betainc(0.5, (d - 1) / 2, x**2) / 2

    def moment(x):  # the integral of x times the density up to x
        return -((1 - x**2) ** ((d - 1) / 2)) / ((d - 1) * np.exp(log_z))

    return _fixed_point(bits, mass, moment, edge=1.0, scale=1 / np.sqrt(d))


@cache
def normal_levels(bits: int) -> Float[np.ndarray, " c"]:
    """Levels for N(0, 1): those of a coordinate times sqrt(d) as d grows; float64, ascending."""

    def mass(x):
        return erf(x / np.sqrt(2)) / 2

    def moment(x):
        return -np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)

    return _fixed_point(bits, mass, moment, edge=np.inf, scale=1.0)


def _fixed_point(bits: int, mass, moment, *, edge: float, scale: float) -> Float[np.ndarray, " c"]:
    """c_i ← E[x | x nearest to c_i] until nothing changes: the borders are midpoints, first moments have closed forms.

    Of a symmetric density, so the levels above 0 are moved and mirrored.
    """
    half = scale * np.linspace(0, 3, 2 ** (bits - 1) + 2)[1:-1]
    for _ in range(_SWEEPS):
        borders = np.concatenate([[0.0], (half[1:] + half[:-1]) / 2, [edge]])
        new = np.diff(moment(borders)) / np.diff(mass(borders))
        change, half = np.abs(new - half).max(), new
        if change < _CHANGE * scale:
            break
    return np.concatenate([-half[::-1], half])
