"""D2O, table 4: how layers share the cache."""

from functools import partial

import kvjax
from experiments.ablations.ablation import Ablation, Setting, Variant, columns
from experiments.ablations.run import main
from kvjax.allocate import (
    AttentionVariance,
    ExponentialDecay,
    HeadVariance,
    InverseVarianceSoftmax,
    OverMean,
    Reciprocal,
    Uniform,
)
from kvjax.stage import Allocator

COLUMNS = ("CoQA", "TREC")


def variants(setting: Setting) -> list[Variant]:
    """The paper's four allocations of variances over their mean, then D2O's own normalisation, by layer and by head."""
    by = partial(partial, _shared, setting)
    rules = {rule: AttentionVariance(shares=rule, density=OverMean()) for rule in (ExponentialDecay(), Reciprocal())}
    decay, reciprocal = rules.values()
    softmax = AttentionVariance(shares=InverseVarianceSoftmax(), density=OverMean())
    return [
        Variant("exponential decay", by(decay), columns(COLUMNS, (48.26, 57.46))),
        Variant("uniform", by(Uniform()), columns(COLUMNS, (55.30, 65.10))),
        Variant("reciprocal", by(reciprocal), columns(COLUMNS, (58.10, 68.00))),
        Variant("inverse variance softmax", by(softmax), columns(COLUMNS, (59.25, 69.72))),
        Variant("inverse variance softmax, min-max (our D2O)", by(AttentionVariance())),
        Variant("inverse variance softmax, min-max, by head", by(HeadVariance())),
    ]


def _shared(setting: Setting, allocate: Allocator) -> kvjax.Policy:
    return kvjax.methods.d2o(budget=setting.budget).replace(allocate=allocate)


ABLATION = Ablation(
    title="D2O: layer budgets",
    source="arXiv 2406.13035, table 4 (Llama-3-8B, 20%)",
    variants=variants,
    budget=0.2,
    lengths=(512,),
    prompts=96,
    note="All rules read the variances divided by their mean over the layers. The paper does not give its exponential decay; "
    "ours is exp(-0.1 rank of the variance). The last two rows are not in the table: our default, and budgets of heads (A.9).",
)

if __name__ == "__main__":
    main(__file__)
