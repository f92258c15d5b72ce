"""StreamingLLM: attention sinks and the last tokens.

*Efficient Streaming Language Models with Attention Sinks*, arXiv 2309.17453, section 3.2.
Stages: score Recency · select TopK(sinks) · every step.
Differs: keys keep their absolute rotary positions. The paper rotates them by rank inside the cache, which is the same while
the text is shorter than the model's context and another method beyond it.
"""

from kvjax.policy import Policy
from kvjax.schedule import Every
from kvjax.score import Recency
from kvjax.select import TopK


def streaming_llm(budget: int | float = 256, sinks: int = 4) -> Policy:
    """Keep the first `sinks` tokens and the last budget - sinks, after the prompt and at every step."""
    return Policy(score=Recency(), select=TopK(sinks=sinks, recent=1), when=Every(1), budget=budget)
