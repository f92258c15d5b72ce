"""D2O, table 11: how fast the merge threshold follows."""

from functools import partial

import kvjax
from experiments.ablations.ablation import Ablation, Setting, Variant, columns
from experiments.ablations.run import main

COLUMNS = ("CoQA", "GSM8K", "TruthfulQA")
PAPER = {
    0.5: (56.35, 40.04, 44.13),
    0.6: (57.12, 41.02, 44.92),
    0.7: (57.92, 41.24, 43.1),
    0.8: (57.18, 40.18, 42.4),
    0.9: (56.92, 39.89, 38.8),
}


def variants(setting: Setting) -> list[Variant]:
    """beta, the weight of the newest similarities."""
    return [
        Variant(f"beta {beta}", partial(kvjax.methods.d2o, budget=setting.budget, beta=beta), columns(COLUMNS, scores))
        for beta, scores in PAPER.items()
    ]


ABLATION = Ablation(
    title="D2O: beta of the moving threshold",
    source="arXiv 2406.13035, table 11 (Llama-3-8B, 20%)",
    variants=variants,
    budget=0.2,
    lengths=(512,),
    prompts=512,
)

if __name__ == "__main__":
    main(__file__)
