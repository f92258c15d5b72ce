"""Random Attention: the prompt stays, decoded tokens go at random.

*Random Attention: Rethinking KV Cache Eviction for Efficient Reasoning*, arXiv 2609.03430.
Stages: score PromptFirst(FreshDraws) · select TopK(recent) · every `interval` steps. The control that every table needs.
Give it a budget above the prompt's length: the prompt comes first, decoded tokens have what it leaves.
Differs: a prompt that does not fit the budget by itself is cut, at random, when it has been read, and of decoded tokens an
eviction then keeps the `recent` ones alone. The authors' code cuts none then, and of a long prompt keeps the first budget -
recent - 1 tokens at the first eviction (nearly what `.replace(when=Every(64, after_prefill=False))` does). Evictions are counted
from the prompt's end, not by the slots held.

BibTeX:
    @misc{randomattention2026, title={Random Attention: Rethinking KV Cache Eviction for Efficient Reasoning},
      year={2026}, eprint={2609.03430}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.random_attention(budget=len(ids) + 64)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.policy import Policy
from kvjax.schedule import Every
from kvjax.score import FreshDraws, PromptFirst
from kvjax.select import TopK


def random_attention(budget: int | float = 2048, recent: int = 64, interval: int = 64, seed: int = 0) -> Policy:
    """Keep the prompt, the last `recent` tokens, and of the others as many as fit, drawn for each KV head by itself."""
    score = PromptFirst(FreshDraws(seed=seed))
    return Policy(score=score, select=TopK(recent=recent), when=Every(interval), budget=budget)
