"""D2O, table 8: averaged or weighted merging."""

from typing import Any

import kvjax
from experiments.ablations.ablation import Ablation, Variant
from experiments.ablations.run import main
from kvjax.merge import Average, ProportionalNearest, ScatterMean, SoftmaxWeights, WeightedNearest


def variants(lm: Any, budget: int | float) -> list[Variant]:
    """The paper's two merges, the one its code performs, and the paper's where a merged slot counts as all the tokens in it."""
    del lm
    d2o = kvjax.methods.d2o(budget=budget)
    by = lambda weights: d2o.replace(merge=WeightedNearest(weights=weights))  # noqa: E731
    return [
        Variant("average", by(Average()), {"CoQA": 56.58, "TREC": 67.12}),
        Variant("weighted", by(SoftmaxWeights()), {"CoQA": 59.25, "TREC": 69.72}),
        Variant("similarity mean (the code)", by(ScatterMean())),
        Variant("weighted, proportional attention", d2o.replace(merge=ProportionalNearest())),
    ]


ABLATION = Ablation(
    title="D2O: merge policy",
    source="arXiv 2406.13035, table 8 (Llama-3-8B, 20%)",
    variants=variants,
    budget=0.2,
)

if __name__ == "__main__":
    main(__file__)
