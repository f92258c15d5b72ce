"""The fewest slots whose attention reaches a share of the mass, from scores."""

from .api import select_mass
from .xla import fewest

__all__ = ["fewest", "select_mass"]
