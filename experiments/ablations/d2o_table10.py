"""D2O, table 10: important to recent tokens, five ratios."""

from typing import Any

import kvjax
from experiments.ablations.ablation import Ablation, Variant
from experiments.ablations.run import main


def variants(lm: Any, budget: int | float) -> list[Variant]:
    """N:M, the share of the cache for important tokens against that for recent ones."""
    del lm
    by = lambda n, m: kvjax.methods.d2o(budget=budget, ratio=(n, m))  # noqa: E731
    return [
        Variant("3:1", by(3, 1), {"CoQA": 57.92, "GSM8K": 41.24, "TruthfulQA": 44.92}),
        Variant("2:1", by(2, 1), {"CoQA": 57.68, "GSM8K": 39.95, "TruthfulQA": 41.49}),
        Variant("1:1", by(1, 1), {"CoQA": 56.87, "GSM8K": 37.26, "TruthfulQA": 26.72}),
        Variant("1:2", by(1, 2), {"CoQA": 54.90, "GSM8K": 36.32, "TruthfulQA": 36.47}),
        Variant("1:3", by(1, 3), {"CoQA": 54.58, "GSM8K": 36.79, "TruthfulQA": 34.52}),
    ]


ABLATION = Ablation(
    title="D2O: N:M",
    source="arXiv 2406.13035, table 10 (Llama-3-8B, 20%)",
    variants=variants,
    budget=0.2,
)

if __name__ == "__main__":
    main(__file__)
