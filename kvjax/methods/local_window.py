"""Local window: the last tokens only.

Stages: score Recency · select TopK · every step. Sliding-window attention as a cache policy; it loses the first token as
soon as the window is full, and perplexity collapses there (the attention-sink effect): that is the expected result.
Differs: the step attends first, so that a query sees budget + 1 keys; the prompt is read with full causal attention before it is
cut.

Example:
    policy = kvjax.methods.local_window(budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.policy import Policy
from kvjax.schedule import Every
from kvjax.score import Recency


def local_window(budget: int | float = 256) -> Policy:
    """Keep the last `budget` tokens, after the prompt and at every step."""
    return Policy(score=Recency(), when=Every(1), budget=budget)
