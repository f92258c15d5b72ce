"""D2O, table 7: what similarity is measured on."""

from typing import Any

import kvjax
from experiments.ablations.ablation import Ablation, Variant
from experiments.ablations.run import main
from kvjax.merge import KeyLikeness, OwnLikeness, ValueLikeness, WeightedNearest


def variants(lm: Any, budget: int | float) -> list[Variant]:
    """Nearest by key, by value, and each by its own."""
    del lm
    d2o = kvjax.methods.d2o(budget=budget)
    on = lambda feature: d2o.replace(merge=WeightedNearest(feature=feature))  # noqa: E731
    return [
        Variant("keys", on(KeyLikeness()), {"CoQA": 59.25, "TREC": 69.72}),
        Variant("values", on(ValueLikeness()), {"CoQA": 53.88, "TREC": 64.34}),
        Variant("keys and values independently", on(OwnLikeness()), {"CoQA": 53.54, "TREC": 62.76}),
    ]


ABLATION = Ablation(
    title="D2O: similarity feature",
    source="arXiv 2406.13035, table 7 (Llama-3-8B, 20%)",
    variants=variants,
    budget=0.2,
)

if __name__ == "__main__":
    main(__file__)
