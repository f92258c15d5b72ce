"""D2O, table 9: important to recent tokens, three ratios."""

from functools import partial

import kvjax
from experiments.ablations.ablation import Ablation, Setting, Variant, columns
from experiments.ablations.run import main

COLUMNS = ("CoQA", "TREC")
PAPER = {(3, 1): (59.25, 69.72), (1, 1): (56.52, 66.45), (1, 3): (55.43, 65.41)}


def variants(setting: Setting) -> list[Variant]:
    """N:M, the share of the cache for important tokens against that for recent ones."""
    return [
        Variant(f"{n}:{m}", partial(kvjax.methods.d2o, budget=setting.budget, ratio=(n, m)), columns(COLUMNS, scores))
        for (n, m), scores in PAPER.items()
    ]


ABLATION = Ablation(
    title="D2O: N:M",
    source="arXiv 2406.13035, table 9 (Llama-3-8B, 20%)",
    variants=variants,
    budget=0.2,
    lengths=(512,),
    prompts=96,
)

if __name__ == "__main__":
    main(__file__)
