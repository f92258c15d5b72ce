"""CompressKV, table 3: what head selection and layer budgets each add to SnapKV."""

from typing import Any

import kvjax
from experiments.ablations.ablation import Ablation, Variant
from experiments.ablations.run import main
from kvjax.allocate import Uniform


def variants(lm: Any, budget: int | float) -> list[Variant]:
    """SnapKV, semantic retrieval heads, and with them the error-aware layer budgets."""
    del lm
    compresskv, column = kvjax.methods.compresskv(budget=budget), "16 LongBench sets"
    return [
        Variant("SnapKV", kvjax.methods.snapkv(budget=budget, window=8), {column: 43.76}),
        Variant("+ SRH selection", compresskv.replace(allocate=Uniform()), {column: 44.96}),
        Variant("+ SRH selection + layer budgets", compresskv, {column: 45.43}),
    ]


ABLATION = Ablation(
    title="CompressKV: components",
    source="arXiv 2508.02401, table 3 (Mistral-7B, 256 tokens)",
    variants=variants,
    budget=256,
)

if __name__ == "__main__":
    main(__file__)
