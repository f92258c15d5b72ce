"""D2O, table 4: how layers share the cache."""

from typing import Any

import kvjax
from experiments.ablations.ablation import Ablation, Variant
from experiments.ablations.run import main
from kvjax.allocate import AttentionVariance, ExponentialDecay, InverseVarianceSoftmax, Raw, Reciprocal, Uniform


def variants(lm: Any, budget: int | float) -> list[Variant]:
    """The paper's four allocations."""
    del lm
    d2o = kvjax.methods.d2o(budget=budget)
    by = lambda shares, **how: d2o.replace(allocate=AttentionVariance(shares=shares, **how))  # noqa: E731
    return [
        Variant("exponential decay", by(ExponentialDecay()), {"CoQA": 48.26, "TREC": 57.46}),
        Variant("uniform", d2o.replace(allocate=Uniform()), {"CoQA": 55.30, "TREC": 65.10}),
        Variant("reciprocal", by(Reciprocal(), density=Raw()), {"CoQA": 58.10, "TREC": 68.00}),
        Variant("inverse variance softmax", by(InverseVarianceSoftmax()), {"CoQA": 59.25, "TREC": 69.72}),
    ]


ABLATION = Ablation(
    title="D2O: layer budgets",
    source="arXiv 2406.13035, table 4 (Llama-3-8B, 20%)",
    variants=variants,
    budget=0.2,
    note="The paper does not give its exponential decay; ours is exp(-0.1 rank of the variance).",
)

if __name__ == "__main__":
    main(__file__)
