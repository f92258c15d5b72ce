"""D2O, table 10: important to recent tokens, five ratios."""

from functools import partial

import kvjax
from experiments.ablations.ablation import Ablation, Setting, Variant, columns
from experiments.ablations.run import main

COLUMNS = ("CoQA", "GSM8K", "TruthfulQA")
PAPER = {
    (3, 1): (57.92, 41.24, 44.92),
    (2, 1): (57.68, 39.95, 41.49),
    (1, 1): (56.87, 37.26, 26.72),
    (1, 2): (54.90, 36.32, 36.47),
    (1, 3): (54.58, 36.79, 34.52),
}


def variants(setting: Setting) -> list[Variant]:
    """N:M, the share of the cache for important tokens against that for recent ones."""
    return [
        Variant(f"{n}:{m}", partial(kvjax.methods.d2o, budget=setting.budget, ratio=(n, m)), columns(COLUMNS, scores))
        for (n, m), scores in PAPER.items()
    ]


ABLATION = Ablation(
    title="D2O: N:M",
    source="arXiv 2406.13035, table 10 (Llama-3-8B, 20%)",
    variants=variants,
    budget=0.2,
    lengths=(512,),
    prompts=96,
)

if __name__ == "__main__":
    main(__file__)
