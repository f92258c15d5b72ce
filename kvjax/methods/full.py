"""The full cache: everything.

The reference every other method reduces to at budget = length.

Example:
    policy = kvjax.methods.full()
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.policy import Policy


def full() -> Policy:
    """Keep everything."""
    return Policy(budget=1.0)
