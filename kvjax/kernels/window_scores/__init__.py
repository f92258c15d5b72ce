"""What the last queries of a prompt attend to: column sums of their probabilities, in memory linear in its length."""

from .api import window_scores
from .mask import sees

__all__ = ["sees", "window_scores"]
