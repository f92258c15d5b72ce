"""HCAttention, table 4a: centroids per codebook."""

from typing import Any

from experiments.ablations.ablation import Ablation, Variant
from experiments.ablations.codebooks import fitted
from experiments.ablations.run import main

#: The paper's c and ours: a 64-dimensional key in half as many groups has room for a 16th as many centroids.
PAPER = {256: 23.8, 1024: 36.4, 2048: 41.4, 4096: 42.2, 8192: 43.5}


def variants(lm: Any, budget: int | float) -> list[Variant]:
    """c a sixteenth of the paper's for heads of up to 64 channels, the paper's own beyond."""
    del budget
    scale, groups = (16, 16) if lm.decoder.head_dim <= 64 else (1, 32)
    return [
        Variant(f"c = {c // scale} (paper {c})", fitted(lm, groups=groups, centroids=c // scale), {"12 LongBench tasks": score})
        for c, score in PAPER.items()
    ]


ABLATION = Ablation(
    title="HCAttention: centroids",
    source="arXiv 2507.19823, table 4a (Llama-2-7B-32K, g = 32, tau = 1)",
    variants=variants,
    budget=1.0,
    note="Codebooks are fitted when the script runs and kept in kvjax's cache folder.",
)

if __name__ == "__main__":
    main(__file__)
