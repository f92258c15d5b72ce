"""CompressKV's head masking: the needle without the heads that are said to find it."""

from typing import Any

import numpy as np

import kvjax
from experiments.ablations.ablation import Ablation, Variant
from experiments.ablations.run import main
from kvjax.artefacts.artefact import resolve
from kvjax.retrieve import MaskHeads


def variants(lm: Any, budget: int | float) -> list[Variant]:
    """The best heads by semantic, by classical score, and random ones, masked while decoding: 1, 2 and 3% of 1,024 heads."""
    del budget
    tables = resolve("smollm2-135m" if lm.name == "smollm2-135m" else lm.name, "compresskv").tables
    shape = tables["srh_score"].shape
    orders = {
        "semantic": np.argsort(-tables["srh_score"].reshape(-1), kind="stable"),
        "classical": np.argsort(-tables["classical_score"].reshape(-1), kind="stable"),
        "random": np.random.default_rng(0).permutation(shape[0] * shape[1]),
    }
    drop = {("semantic", 30): 26.0, ("classical", 30): 88.0}
    return [Variant("none", kvjax.methods.full(), {"left of full, %": 100.0})] + [
        Variant(f"top {k} {name}", _masked(order[:k], shape, f"{name} {k}"), _paper(drop.get((name, k))))
        for k in (10, 20, 30)
        for name, order in orders.items()
    ]


def _paper(left: float | None) -> dict[str, float]:
    return {} if left is None else {"left of full, %": left}


def _masked(heads: np.ndarray, shape: tuple[int, int], origin: str) -> Any:
    mask = np.zeros(shape, bool)
    mask.reshape(-1)[heads] = True
    return kvjax.methods.full().replace(retrieve=MaskHeads(mask, origin=origin))


ABLATION = Ablation(
    title="CompressKV: masking heads while decoding",
    source="arXiv 2508.02401, head masking (Mistral-7B, needle; top 30 of 1,024 heads)",
    variants=variants,
    budget=1.0,
    tasks="needle",
    note="Queries of masked heads are zero while decoding, the question included; the paper masks generated tokens only.",
)

if __name__ == "__main__":
    main(__file__)
