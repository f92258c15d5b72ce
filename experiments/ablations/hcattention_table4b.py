"""HCAttention, table 4b: groups of channels, and codebooks shared by groups or not."""

from typing import Any

import kvjax
from experiments.ablations.ablation import Ablation, Variant
from experiments.ablations.codebooks import fitted
from experiments.ablations.run import main


def variants(lm: Any, budget: int | float) -> list[Variant]:
    """The paper's g at the same channels per group: g = 16, 32, 64 of 128 channels are 8, 16, 32 of 64."""
    del budget
    d = lm.decoder.head_dim
    c = 256 if d <= 64 else 8192
    by = lambda share, shared: fitted(lm, groups=d // share, centroids=c, shared=shared)  # noqa: E731
    column = "12 LongBench tasks"
    return [
        Variant("no quantisation", kvjax.methods.full(), {column: 46.9}),
        Variant(f"g = {d // 8} shared (paper 16)", by(8, True), {column: 12.8}),
        Variant(f"g = {d // 4} shared (paper 32)", by(4, True), {column: 43.5}),
        Variant(f"g = {d // 2} shared (paper 64)", by(2, True), {column: 46.5}),
        Variant(f"g = {d // 2} separate (paper 64*)", by(2, False), {column: 45.6}),
    ]


ABLATION = Ablation(
    title="HCAttention: groups",
    source="arXiv 2507.19823, table 4b (Llama-2-7B-32K, c = 8192, tau = 1)",
    variants=variants,
    budget=1.0,
    note="c = 256 for heads of up to 64 channels. The paper's text says separate codebooks are better, its table the opposite.",
)

if __name__ == "__main__":
    main(__file__)
