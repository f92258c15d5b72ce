"""D2O, table 7: what similarity is measured on."""

from functools import partial

import kvjax
from experiments.ablations.ablation import Ablation, Setting, Variant, columns
from experiments.ablations.run import main
from kvjax.merge import KeyLikeness, OwnLikeness, ValueLikeness, WeightedNearest
from kvjax.types import Function

COLUMNS = ("CoQA", "TREC")


def variants(setting: Setting) -> list[Variant]:
    """Nearest by key, by value, and each by its own."""
    return [
        Variant("keys", partial(_on, setting, KeyLikeness()), columns(COLUMNS, (59.25, 69.72))),
        Variant("values", partial(_on, setting, ValueLikeness()), columns(COLUMNS, (53.88, 64.34))),
        Variant("keys and values independently", partial(_on, setting, OwnLikeness()), columns(COLUMNS, (53.54, 62.76))),
    ]


def _on(setting: Setting, feature: Function) -> kvjax.Policy:
    return kvjax.methods.d2o(budget=setting.budget).replace(merge=WeightedNearest(feature=feature))


ABLATION = Ablation(
    title="D2O: similarity feature",
    source="arXiv 2406.13035, table 7 (Llama-3-8B, 20%)",
    variants=variants,
    budget=0.2,
    lengths=(512,),
    prompts=96,
)

if __name__ == "__main__":
    main(__file__)
