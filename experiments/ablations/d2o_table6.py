"""D2O, table 6: what the layer budgets and the merge threshold each add to H2O."""

from typing import Any

import kvjax
from experiments.ablations.ablation import Ablation, Variant
from experiments.ablations.run import main
from kvjax.allocate import Uniform
from kvjax.merge import NoThreshold, WeightedNearest

COLUMNS = ("MultiFieldQA", "2WikiMQA", "GovReport", "PassageRetrieval")


def variants(lm: Any, budget: int | float) -> list[Variant]:
    """D2O without its parts, and H2O."""
    del lm
    d2o = kvjax.methods.d2o(budget=budget)
    everything = WeightedNearest(threshold=NoThreshold())
    paper = lambda *scores: dict(zip(COLUMNS, scores, strict=True))  # noqa: E731
    return [
        Variant("H2O", kvjax.methods.h2o(budget=budget), paper(17.22, 11.23, 21.29, 11.11)),
        Variant("D2O", d2o, paper(19.93, 12.79, 24.36, 14.67)),
        Variant("w/o layer op", d2o.replace(allocate=Uniform()), paper(18.89, 11.67, 22.45, 13.44)),
        Variant("w/o EMA threshold", d2o.replace(merge=everything), paper(19.23, 11.88, 22.85, 13.23)),
        Variant("w/o both", d2o.replace(allocate=Uniform(), merge=everything), paper(17.85, 11.58, 21.87, 11.98)),
    ]


ABLATION = Ablation(
    title="D2O: components",
    source="arXiv 2406.13035, table 6 (Llama-3-8B, 20%)",
    variants=variants,
    budget=0.2,
)

if __name__ == "__main__":
    main(__file__)
