"""CompressKV's head masking: a sentence in a long text without the heads that are said to find it."""

from functools import partial

import numpy as np

import kvjax
from experiments.ablations.ablation import Ablation, Setting, Variant
from experiments.ablations.run import main
from kvjax.retrieve import MaskHeads

#: The paper's 30 of 1,024 heads, a third and two thirds of them; what is left of the score of the full model, in percent.
MASKED, HEADS = (10, 20, 30), 1024
LEFT = {("semantic", 30): 26.0, ("classical", 30): 88.0}
TABLES = {"semantic": "srh_score", "classical": "classical_score"}


def variants(setting: Setting) -> list[Variant]:
    """The best heads by semantic, by classical score, and random ones, masked while decoding: 1, 2 and 3% of all query heads."""
    total = setting.layers * setting.queries
    counts = {max(1, round(of * total / HEADS)): of for of in MASKED}
    return [Variant("none", kvjax.methods.full, {"left of full, %": 100.0})] + [
        Variant(f"{k} of {total}, {name}", partial(_masked, setting, name, k), _paper(LEFT.get((name, of))))
        for k, of in counts.items()
        for name in ("semantic", "classical", "random")
    ]


def _paper(left: float | None) -> dict[str, float]:
    return {} if left is None else {"left of full, %": left}


def _masked(setting: Setting, name: str, k: int) -> kvjax.Policy:
    found, mask = setting.artefact("compresskv"), np.zeros((setting.layers, setting.queries), bool)
    if name == "random":
        order = np.random.default_rng(0).permutation(mask.size)
    else:
        order = np.argsort(-found.tables[TABLES[name]].reshape(-1), kind="stable")
    mask.reshape(-1)[order[:k]] = True
    return kvjax.methods.full().replace(retrieve=MaskHeads(mask, origin=f"{found.origin}, {name} {k}"))


ABLATION = Ablation(
    title="CompressKV: masking heads while decoding",
    source="arXiv 2508.02401, head masking (Mistral-7B, needle; top 30 of 1,024 heads)",
    variants=variants,
    budget=1.0,
    tasks="recall",
    prompts=64,
    note="As many of the model's heads as 10, 20 and 30 of 1,024 are. The answer is a sentence, graded by ROUGE-L: a part counts. "
    "Queries of masked heads are zero while decoding; with the question in the prompt these are the answer's alone.",
)

if __name__ == "__main__":
    main(__file__)
