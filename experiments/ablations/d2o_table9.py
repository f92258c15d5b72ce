"""D2O, table 9: important to recent tokens, three ratios."""

from typing import Any

import kvjax
from experiments.ablations.ablation import Ablation, Variant
from experiments.ablations.run import main


def variants(lm: Any, budget: int | float) -> list[Variant]:
    """N:M, the share of the cache for important tokens against that for recent ones."""
    del lm
    by = lambda n, m: kvjax.methods.d2o(budget=budget, ratio=(n, m))  # noqa: E731
    return [
        Variant("3:1", by(3, 1), {"CoQA": 59.25, "TREC": 69.72}),
        Variant("1:1", by(1, 1), {"CoQA": 56.52, "TREC": 66.45}),
        Variant("1:3", by(1, 3), {"CoQA": 55.43, "TREC": 65.41}),
    ]


ABLATION = Ablation(
    title="D2O: N:M",
    source="arXiv 2406.13035, table 9 (Llama-3-8B, 20%)",
    variants=variants,
    budget=0.2,
)

if __name__ == "__main__":
    main(__file__)
