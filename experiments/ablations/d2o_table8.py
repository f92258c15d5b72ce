"""D2O, table 8: averaged or weighted merging."""

from functools import partial

import kvjax
from experiments.ablations.ablation import Ablation, Setting, Variant, columns
from experiments.ablations.run import main
from kvjax.merge import Average, ProportionalNearest, ScatterMean, SoftmaxWeights, WeightedNearest
from kvjax.stage import Merger

COLUMNS = ("CoQA", "TREC")


def variants(setting: Setting) -> list[Variant]:
    """The paper's two merges, the one its code performs, and the paper's where a merged slot counts as all the tokens in it."""
    return [
        Variant("average", partial(_by, setting, WeightedNearest(weights=Average())), columns(COLUMNS, (56.58, 67.12))),
        Variant("weighted", partial(_by, setting, WeightedNearest(weights=SoftmaxWeights())), columns(COLUMNS, (59.25, 69.72))),
        Variant("similarity mean (the code)", partial(_by, setting, WeightedNearest(weights=ScatterMean()))),
        Variant("weighted, proportional attention", partial(_by, setting, ProportionalNearest())),
    ]


def _by(setting: Setting, merge: Merger) -> kvjax.Policy:
    return kvjax.methods.d2o(budget=setting.budget).replace(merge=merge)


ABLATION = Ablation(
    title="D2O: merge policy",
    source="arXiv 2406.13035, table 8 (Llama-3-8B, 20%)",
    variants=variants,
    budget=0.2,
    lengths=(512,),
    prompts=96,
)

if __name__ == "__main__":
    main(__file__)
