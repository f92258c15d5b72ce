"""HeteroCache, table 4: without head budgets, and without retrieval."""

from functools import partial

import kvjax
from experiments.ablations.ablation import Ablation, Setting, Variant
from experiments.ablations.run import main
from kvjax.retrieve import FullAttention

COLUMN = "not named"


def variants(setting: Setting) -> list[Variant]:
    """The method, the same length for every compressed head, and satellites that are never refreshed."""
    return [
        Variant("HeteroCache", partial(heterocache, setting), {COLUMN: 46.00}),
        Variant("w/o allocation", partial(heterocache, setting, even=True), {COLUMN: 44.97}),
        Variant("w/o retrieval", lambda: heterocache(setting).replace(retrieve=FullAttention()), {COLUMN: 45.32}),
    ]


def heterocache(setting: Setting, *, even: bool = False) -> kvjax.Policy:
    """With the artefact of the model."""
    return kvjax.methods.heterocache(budget=setting.budget, even=even, artefact=setting.artefact("heterocache"))


ABLATION = Ablation(
    title="HeteroCache: components",
    source="arXiv 2601.13684, table 4 (Llama-3.1-8B, 50%; the data set is not named)",
    variants=variants,
    budget=0.5,
    tasks="needle,ppl,counting_given",
    lengths=(2048,),
    note="`--tasks counting_given` looks back at the prompt after 1,024 further tokens: attention has drifted by then.",
)

if __name__ == "__main__":
    main(__file__)
