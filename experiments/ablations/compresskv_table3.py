"""CompressKV, table 3: what head selection and layer budgets each add to SnapKV."""

from functools import partial

import kvjax
from experiments.ablations.ablation import Ablation, Setting, Variant
from experiments.ablations.run import main
from kvjax.allocate import Uniform

COLUMN = "16 LongBench sets"


def variants(setting: Setting) -> list[Variant]:
    """SnapKV, semantic retrieval heads, and with them the error-aware layer budgets."""
    snapkv = partial(kvjax.methods.snapkv, budget=setting.budget, window=8)
    return [
        Variant("SnapKV", snapkv, {COLUMN: 43.76}),
        Variant("+ SRH selection", lambda: compresskv(setting).replace(allocate=Uniform()), {COLUMN: 44.96}),
        Variant("+ SRH selection + layer budgets", partial(compresskv, setting), {COLUMN: 45.43}),
    ]


def compresskv(setting: Setting) -> kvjax.Policy:
    """By an eighth of a layer's query heads, as the paper's 4 of 32."""
    heads = max(1, round(setting.queries / 8))
    return kvjax.methods.compresskv(budget=setting.budget, heads=heads, artefact=setting.artefact("compresskv"))


ABLATION = Ablation(
    title="CompressKV: components",
    source="arXiv 2508.02401, table 3 (Mistral-7B, 256 tokens)",
    variants=variants,
    budget=256,
    note="An eighth of a layer's query heads selects, as the paper's 4 of 32: one of 9.",
)

if __name__ == "__main__":
    main(__file__)
