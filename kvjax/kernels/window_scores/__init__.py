"""What the last queries of a prompt attend to: column sums of their probabilities, in memory linear in its length."""

from .api import window_scores

__all__ = ["window_scores"]
