"""HCAttention, table 3: how much attention mass each query reads; keys exact, values on the device."""

from typing import Any

import kvjax
from experiments.ablations.ablation import Ablation, Variant
from experiments.ablations.run import main
from kvjax.retrieve import TopP

PAPER = {0.3: 40.2, 0.5: 41.2, 0.7: 43.9, 0.9: 47.2, 1.0: 46.9}


def variants(lm: Any, budget: int | float) -> list[Variant]:
    """tau from a third of the mass to all of it."""
    del lm, budget
    full = kvjax.methods.full()
    return [
        Variant(f"tau {tau}", full.replace(retrieve=TopP(tau=tau)), {"12 LongBench tasks": score})
        for tau, score in PAPER.items()
    ]


ABLATION = Ablation(
    title="HCAttention: tau",
    source="arXiv 2507.19823, table 3 (Llama-2-7B-32K)",
    variants=variants,
    budget=1.0,
)

if __name__ == "__main__":
    main(__file__)
