"""ARKV: full precision, eight bits or evicted, in shares that a layer's attention decides.

*ARKV: Adaptive and Resource-Efficient KV Cache Management under Limited Memory Budget for Long-Context Inference in LLMs*,
arXiv 2603.08727, and its release.
Stages: score MeanAndVariance · allocate OriginShares · select the best C - W slots and the last W · encode Tiered(as they are,
Fp8) · when a head holds more than C slots.
A prompt is cut to C slots, all exact. When a head overflows while decoding, of its slots before the last W the best three quarters
by the newest query's attention stay, the origin share of its layer of them exact, the others in eight bits.
Differs: a scale of its own for every token and KV head, not one for all rows and heads; what was coded stays coded, with the same
numbers, instead of being decoded and coded again. At an overflow scores are pooled in the order of the text; the release pools
them in the order its cuts leave: the prompt's slots by score, and later those that it codes.

BibTeX:
    @article{arkv2026, title={{ARKV}: Adaptive and Resource-Efficient {KV} Cache Management under Limited Memory Budget for
      Long-Context Inference in {LLM}s}, author={Jianlong Lei and Shashikant Ilager}, journal={arXiv:2603.08727}, year={2026}}

Example:
    policy = kvjax.methods.arkv(budget=128)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.allocate import OriginShares
from kvjax.budget import number_of
from kvjax.codec import Fp8
from kvjax.encode import Stored, Tiered
from kvjax.policy import Policy
from kvjax.schedule import Every
from kvjax.score import MeanAndVariance, StepAttention
from kvjax.select import Fixed, TopK
from kvjax.tiers import OriginFirst


def arkv(
    budget: int | float = 512, window: int = 32, gamma: float = 263.81, t1: float = 7.774, t2: float = 5.407, t3: float = 5.528
) -> Policy:
    """Keep at most `budget` slots a head, some of them in eight bits.

    Args:
        budget: C, slots of a head, an integer.
        window: W, last slots that are exact, and queries of the prompt that are looked at.
        gamma: weight of the variance in a prompt token's score.
        t1, t2, t3: inverse exponents of a layer's entropy, variance and kurtosis.

    Raises:
        ValueError: a budget that is no integer, or below the window; a window below 1.
    """
    if not isinstance(number_of(budget), int) or not 1 <= window <= budget:
        raise ValueError(f"budget is an integer of slots, at least the window of {window}, that at least 1; got {budget!r}")
    coded = Stored(keys=Fp8(scaled=True), values=Fp8(scaled=True))
    return Policy(
        score=MeanAndVariance(window=window, gamma=gamma),
        allocate=OriginShares(budget=budget, window=window, t1=t1, t2=t2, t3=t3),
        select=Fixed(budget, TopK(recent=window)),
        encode=Tiered((Stored(), coded), rule=OriginFirst(budget=budget, window=window)),
        when=Every(1, score=StepAttention(), grows=True),
    )
