"""CompressKV, table 2: how many semantic retrieval heads choose the tokens of a layer."""

from typing import Any

import kvjax
from experiments.ablations.ablation import Ablation, Variant
from experiments.ablations.run import main
from kvjax.allocate import Uniform

PAPER = {2: 44.33, 4: 44.96, 6: 44.79, 12: 44.96, 24: 44.30}


def variants(lm: Any, budget: int | float) -> list[Variant]:
    """Top-k heads of each layer, uniform layers; k is clipped at the model's query heads."""
    most = lm.decoder.heads * lm.decoder.groups
    by = lambda heads: kvjax.methods.compresskv(budget=budget, heads=heads).replace(allocate=Uniform())  # noqa: E731
    return [
        Variant(f"top {heads}", by(heads), {"16 LongBench sets": score}) for heads, score in PAPER.items() if heads <= most
    ]


ABLATION = Ablation(
    title="CompressKV: heads that select",
    source="arXiv 2508.02401, table 2 (Mistral-7B, 256 tokens, uniform layers)",
    variants=variants,
    budget=256,
    note="Heads beyond the model's query heads are left out.",
)

if __name__ == "__main__":
    main(__file__)
