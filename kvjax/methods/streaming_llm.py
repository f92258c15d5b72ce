"""StreamingLLM: attention sinks and the last tokens.

*Efficient Streaming Language Models with Attention Sinks*, arXiv 2309.17453, section 3.2.
Stages: score Recency · select TopK(sinks) · encode Stored(positions) · every step.
Differs: keys keep their absolute rotary positions by default. The paper rotates them by rank inside the cache, which is another
method once something was evicted: `positions=InCache()`. The step attends first: it holds one slot more than the paper's. The
prompt is read whole, at its own positions, before it is cut.

BibTeX:
    @misc{xiao2023streamingllm, title={Efficient Streaming Language Models with Attention Sinks},
      author={Guangxuan Xiao and others}, year={2023}, eprint={2309.17453}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.streaming_llm(budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.encode import Absolute, Stored
from kvjax.encode.positions import PositionPolicy
from kvjax.policy import Policy
from kvjax.schedule import Every
from kvjax.score import Recency
from kvjax.select import TopK


def streaming_llm(budget: int | float = 256, sinks: int = 4, positions: PositionPolicy = Absolute()) -> Policy:
    """Keep the first `sinks` tokens and the last budget - sinks, after the prompt and at every step.

    Args:
        budget: slots a head keeps, the sinks included.   sinks: first tokens that always stay.
        positions: Absolute(), or InCache() as published, for texts of any length.
    """
    select, encode = TopK(sinks=sinks, recent=1), Stored(positions=positions)
    return Policy(score=Recency(), select=select, encode=encode, when=Every(1), budget=budget)
