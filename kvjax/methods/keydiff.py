"""KeyDiff: keys that differ most from the others are kept.

*KeyDiff: Key Similarity-Based KV Cache Eviction for Long-Context LLM Inference in Resource-Constrained Environments*,
arXiv 2504.15364.
Stages: score KeyDiff · after the prompt. Needs no queries, so it does not matter whether the question is known yet.
"""

from kvjax.policy import Policy
from kvjax.score import KeyDiff


def keydiff(budget: int | float = 256) -> Policy:
    """Keep the `budget` keys least similar to the mean direction of each head's keys."""
    return Policy(score=KeyDiff(), budget=budget)
