"""CaM: the value of an evicted token is added, by chance, to the tokens that follow it.

*CaM: Cache Merging for Memory-efficient LLMs Inference*, ICML 2024.
Stages: score AccumulatedAttention · select SinksAndRecent, or TopK(sinks, recent_share) · merge ByChance(m, beta) · every step.
Differs: one draw for each KV head from the group's mean; the gate reads accumulated attention, as the release's streaming form.
What a prompt loses is merged, too, all at once; the release's streaming form evicts one token at a time, its tasks merge nothing
of a prompt, nor does kvpress, which merges at most as many as came since. To merge while decoding alone, cut the prompt by
`policy.replace(merge=kvjax.merge.Drop())` and decode by `policy`.

Example:
    policy = kvjax.methods.cam(budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.merge import ByChance
from kvjax.policy import Policy
from kvjax.schedule import Every
from kvjax.score import AccumulatedAttention
from kvjax.select import SinksAndRecent, TopK


def cam(
    budget: int | float = 256, sinks: int = 4, m: int = 16, over: int | None = 16, beta: float = 1.0, heavy: bool = False,
    seed: int = 0,
) -> Policy:  # fmt: skip
    """Keep sinks and recent tokens, or with `heavy` the most attended and half of the budget recent; merge what goes.

    Args:
        m: slots an evicted value is shared out to.   over: slots its attention is compared with.
        beta: factor of the probability; 0 is the host method.   seed: of the draws.
    """
    select = TopK(sinks=sinks, recent_share=0.5) if heavy else SinksAndRecent(sinks=sinks)
    merge = ByChance(m=m, over=over, beta=beta, seed=seed)
    return Policy(score=AccumulatedAttention(), select=select, merge=merge, when=Every(1), budget=budget)
