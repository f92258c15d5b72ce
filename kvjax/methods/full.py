"""The full cache: everything.

The reference every other method reduces to at budget = length.
"""

from kvjax.policy import Policy


def full() -> Policy:
    """Keep everything."""
    return Policy(budget=1.0)
