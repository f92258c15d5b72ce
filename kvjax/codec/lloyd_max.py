"""Lloyd-Max levels: the 2^b numbers that code a random coordinate with the least squared error."""

from functools import cache

import numpy as np
from jaxtyping import Float
from scipy.special import betainc, betaln, erf

#: Sweeps that bring the levels near, and the steps of Newton's method behind them: half as many reach what float64 resolves.
_SWEEPS, _STEPS = 200, 10


@cache
def sphere_levels(bits: int, d: int) -> Float[np.ndarray, " c"]:
    """Levels for one coordinate of a random unit vector of d: density ∝ (1 - x²)^((d-3)/2) on [-1, 1]; float64, ascending."""
    log_z = betaln(0.5, (d - 1) / 2)

    def mass(x):
        return np.sign(x) * betainc(0.5, (d - 1) / 2, x**2) / 2

    def moment(x):  # the integral of x times the density up to x
        return -((1 - x**2) ** ((d - 1) / 2)) / ((d - 1) * np.exp(log_z))

    def density(x):
        return (1 - x**2) ** ((d - 3) / 2) / np.exp(log_z)

    return _fixed_point(bits, mass, moment, density, edge=1.0, scale=1 / np.sqrt(d))


@cache
def normal_levels(bits: int) -> Float[np.ndarray, " c"]:
    """Levels for N(0, 1): those of a coordinate times sqrt(d) as d grows; float64, ascending."""

    def mass(x):
        return erf(x / np.sqrt(2)) / 2

    def moment(x):
        return -np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)

    def density(x):
        return np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)

    return _fixed_point(bits, mass, moment, density, edge=np.inf, scale=1.0)


def _fixed_point(bits: int, mass, moment, density, *, edge: float, scale: float) -> Float[np.ndarray, " c"]:
    """The levels with c_i = E[x | x nearest to c_i]: the borders are midpoints, first moments have closed forms.

    Of a symmetric density, so the levels above 0 are moved and mirrored.
    """
    half = min(3 * scale, edge) * np.linspace(0, 1, 2 ** (bits - 1) + 2)[1:-1]
    for _ in range(_SWEEPS):
        half, _ = _means(half, mass, moment, edge)
    for _ in range(_STEPS):
        means, masses = _means(half, mass, moment, edge)
        slope = _slope(half, means, masses, density)
        half = half + np.linalg.solve(np.eye(len(half)) - slope, means - half)
    return np.concatenate([-half[::-1], half])


def _means(half, mass, moment, edge: float):
    """E[x | x nearest to c_i] for the levels above 0, and the probability of each."""
    borders = np.concatenate([[0.0], (half[1:] + half[:-1]) / 2, [edge]])
    masses = np.diff(mass(borders))
    return np.diff(moment(borders)) / masses, masses


def _slope(half, means, masses, density) -> Float[np.ndarray, "c c"]:
    """How the means move with the levels, d m_i / d c_j: a border moves by half of what either of its levels does."""
    border = (half[1:] + half[:-1]) / 2
    above = density(border) / 2 * (border - means[:-1]) / masses[:-1]
    below = density(border) / 2 * (means[1:] - border) / masses[1:]
    of_self = np.append(above, 0.0) + np.append(0.0, below)
    return np.diag(of_self) + np.diag(above, 1) + np.diag(below, -1)
