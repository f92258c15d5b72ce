"""D2O: layer budgets from attention variance, and evicted tokens merged into what stays.

*D2O: Dynamic Discriminative Operations for Efficient Long-Context Inference of Large Language Models*, arXiv 2406.13035, section 3.
Stages: score AccumulatedAttention · allocate AttentionVariance · select HeavyRecent · merge WeightedNearest(EMA) · every step.
Differs: one decision per KV head from the group mean of the scores (the release expands keys to query heads, or follows the first
of a group); the prompt is cut when it has been read, not one token later; every layer holds its budget, also one whose budget is
the whole prompt, and no layer is exempt (the release leaves the first two and the last whole, beyond the budget); variances are
normalised over the layers; totals are exact, layers · floor(budget · length); a prompt shorter than a number of slots leaves
every layer that number from then on. Ratio, beta and the merge are the paper's.
Nearer the release: ratio (1, 1) and
`.replace(allocate=WholeLayers(allocate=AttentionVariance(density=HeadsMinMax())), merge=WeightedNearest(EMA(0.5), ScatterMean()))`.

BibTeX:
    @misc{wan2024d2o, title={D2O: Dynamic Discriminative Operations for Efficient Long-Context Inference of Large Language Models},
      author={Zhongwei Wan and others}, year={2024}, eprint={2406.13035}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.d2o(budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.allocate import AttentionVariance
from kvjax.merge import EMA, WeightedNearest
from kvjax.policy import Policy
from kvjax.schedule import Every
from kvjax.score import AccumulatedAttention
from kvjax.select import HeavyRecent


def d2o(budget: int | float = 0.2, ratio: tuple = (3, 1), beta: float = 0.7, sinks: int = 4) -> Policy:
    """Keep the sinks, the most attended and the last tokens, `ratio` heavy to recent; blend the rest into them where alike.

    Raises:
        ValueError: a ratio of other than two numbers from 0 up, not both 0.
    """
    if len(ratio) != 2 or min(ratio) < 0 or sum(ratio) == 0:
        raise ValueError(f"ratio is heavy slots to recent ones, two numbers from 0 up and not both 0, such as (3, 1); got {ratio}")
    heavy, recent = ratio
    return Policy(
        score=AccumulatedAttention(),
        allocate=AttentionVariance(sinks=sinks),
        select=HeavyRecent(sinks=sinks, heavy_share=heavy / (heavy + recent)),
        merge=WeightedNearest(threshold=EMA(beta)),
        when=Every(1),
        budget=budget,
    )
