"""HeteroCache, table 4: without head budgets, and without retrieval."""

from typing import Any

import kvjax
from experiments.ablations.ablation import Ablation, Variant
from experiments.ablations.run import main
from kvjax.retrieve import FullAttention


def variants(lm: Any, budget: int | float) -> list[Variant]:
    """The method, the same length for every compressed head, and satellites that are never refreshed."""
    del lm
    heterocache = kvjax.methods.heterocache(budget=budget)
    column = "not named"
    return [
        Variant("HeteroCache", heterocache, {column: 46.00}),
        Variant("w/o allocation", kvjax.methods.heterocache(budget=budget, even=True), {column: 44.97}),
        Variant("w/o retrieval", heterocache.replace(retrieve=FullAttention()), {column: 45.32}),
    ]


ABLATION = Ablation(
    title="HeteroCache: components",
    source="arXiv 2601.13684, table 4 (Llama-3.1-8B, 50%; the data set is not named)",
    variants=variants,
    budget=0.5,
)

if __name__ == "__main__":
    main(__file__)
