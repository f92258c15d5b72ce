"""CompressKV, table 2: how many semantic retrieval heads choose the tokens of a layer."""

from functools import partial

import kvjax
from experiments.ablations.ablation import Ablation, Setting, Variant
from experiments.ablations.run import main
from kvjax.allocate import Uniform

#: Of Mistral-7B's 32 query heads a layer.
PAPER, QUERIES = {2: 44.33, 4: 44.96, 6: 44.79, 12: 44.96, 24: 44.30}, 32


def variants(setting: Setting) -> list[Variant]:
    """The best k heads of each layer, uniform layers."""
    return [
        Variant(_label(k, of, setting.queries), partial(_policy, setting, k), {"16 LongBench sets": PAPER[of]})
        for k, of in scaled(setting.queries).items()
    ]


def scaled(queries: int) -> dict[int, int]:
    """k → the paper's k of the nearest share: the paper's own from 32 query heads on, powers of two below."""
    if queries >= QUERIES:
        return {of * queries // QUERIES: of for of in PAPER}
    powers = [k for k in (1, 2, 4, 8, 16) if k <= queries]
    return {k: min(PAPER, key=lambda of: abs(of / QUERIES - k / queries)) for k in powers}


def _label(k: int, of: int, queries: int) -> str:
    return f"top {k} of {queries}" + ("" if queries == QUERIES else f" (paper: {of} of {QUERIES})")


def _policy(setting: Setting, k: int) -> kvjax.Policy:
    made = kvjax.methods.compresskv(budget=setting.budget, heads=k, artefact=setting.artefact("compresskv"))
    return made.replace(allocate=Uniform())


ABLATION = Ablation(
    title="CompressKV: heads that select",
    source="arXiv 2508.02401, table 2 (Mistral-7B, 256 tokens, uniform layers)",
    variants=variants,
    budget=256,
    prompts=320,
    note="Below 32 query heads k is 1, 2, 4 and so on, beside the paper's k of the nearest share.",
)

if __name__ == "__main__":
    main(__file__)
