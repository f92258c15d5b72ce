"""HCAttention, table 4a: centroids per codebook."""

from functools import partial

import kvjax
from experiments.ablations.ablation import Ablation, Setting, Variant
from experiments.ablations.run import main

#: The paper's c of four channels a code.
PAPER = {256: 23.8, 1024: 36.4, 2048: 41.4, 4096: 42.2, 8192: 43.5}


def variants(setting: Setting) -> list[Variant]:
    """Four channels a code as the paper, c a sixteenth of it for heads of up to 64 channels; more centroids; two channels."""
    scale = 16 if setting.head_dim <= 64 else 1
    four, two = (partial(coded, setting, share) for share in (4, 2))
    return [
        *(Variant(f"c = {c // scale} (paper {c})", partial(four, c // scale), {"12 LongBench tasks": x}) for c, x in PAPER.items()),
        *([Variant("c = 1024, as many channels", partial(four, 1024))] if 1024 > 8192 // scale else []),
        Variant("c = 256, two channels a code", partial(two, 256)),
    ]


def coded(setting: Setting, share: int, centroids: int, shared: bool = False) -> kvjax.Policy:
    """HCAttention with tau = 1 over codebooks of `share` channels a code."""
    sizes = dict(groups=setting.head_dim // share, centroids=centroids, shared=shared)
    return kvjax.methods.hcattention(artefact=setting.artefact("hcattention", **sizes), tau=1.0)


ABLATION = Ablation(
    title="HCAttention: centroids",
    source="arXiv 2507.19823, table 4a (Llama-2-7B-32K, g = 32, tau = 1)",
    variants=variants,
    budget=1.0,
    question="unseen",
    lengths=(512,),
    note="Codebooks are fitted when the command runs and kept in kvjax's cache folder.",
)

if __name__ == "__main__":
    main(__file__)
