"""KeyDiff: keys that differ most from the others are kept.

*KeyDiff: Key Similarity-Based KV Cache Eviction for Long-Context LLM Inference in Resource-Constrained Environments*,
arXiv 2504.15364.
Stages: score KeyDiff · after the prompt; with a block size: score BlockKeyDiff(block) while decoding KeyDiff · every step.
Needs no queries, so it does not matter whether the question is known yet. To bound memory while the prompt is read, as the paper
does, prefill its first block and feed the rest with `kvjax.extend(..., block=block)`, which cuts back after each block.

BibTeX:
    @misc{park2025keydiff,
      title={KeyDiff: Key Similarity-Based KV Cache Eviction for Long-Context LLM Inference in Resource-Constrained Environments},
      author={Junyoung Park and others}, year={2025}, eprint={2504.15364}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.keydiff(budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.policy import Policy
from kvjax.schedule import Every
from kvjax.score import BlockKeyDiff, KeyDiff


def keydiff(budget: int | float = 256, block: int | None = None) -> Policy:
    """Keep the `budget` keys least similar to the mean direction of each head's keys.

    Args:
        budget: slots, or a share of the prompt.
        block: tokens that arrive at once, each block ranked with what was kept before it; None: all of the prompt at once, once.
    """
    if block is None:
        return Policy(score=KeyDiff(), budget=budget)
    return Policy(score=BlockKeyDiff(budget=budget, block=block), when=Every(1, score=KeyDiff()), budget=budget)
