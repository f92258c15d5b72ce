"""HCAttention, table 4b: groups of channels, and codebooks shared by groups or not."""

from functools import partial

import kvjax
from experiments.ablations.ablation import Ablation, Setting, Variant
from experiments.ablations.hcattention_table4a import coded
from experiments.ablations.run import main

COLUMN = "12 LongBench tasks"


def variants(setting: Setting) -> list[Variant]:
    """The paper's g at the same channels per group: g = 16, 32, 64 of 128 channels are 8, 16, 32 of 64."""
    d = setting.head_dim
    c = 256 if d <= 64 else 8192
    by = partial(partial, coded, setting, centroids=c)
    return [
        Variant("no quantisation", kvjax.methods.full, {COLUMN: 46.9}),
        Variant(f"g = {d // 8} shared (paper 16)", by(share=8, shared=True), {COLUMN: 12.8}),
        Variant(f"g = {d // 4} shared (paper 32)", by(share=4, shared=True), {COLUMN: 43.5}),
        Variant(f"g = {d // 2} shared (paper 64)", by(share=2, shared=True), {COLUMN: 46.5}),
        Variant(f"g = {d // 2} separate (paper 64*)", by(share=2, shared=False), {COLUMN: 45.6}),
    ]


ABLATION = Ablation(
    title="HCAttention: groups",
    source="arXiv 2507.19823, table 4b (Llama-2-7B-32K, c = 8192, tau = 1)",
    variants=variants,
    budget=1.0,
    question="unseen",
    lengths=(512,),
    note="c = 256 for heads of up to 64 channels. The paper's text says separate codebooks are better, its table the opposite.",
)

if __name__ == "__main__":
    main(__file__)
