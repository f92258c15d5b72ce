"""D2O, table 6: what the layer budgets and the merge threshold each add to H2O."""

from functools import partial

import kvjax
from experiments.ablations.ablation import Ablation, Setting, Variant, columns
from experiments.ablations.run import main
from kvjax.allocate import Uniform
from kvjax.merge import NoThreshold, WeightedNearest
from kvjax.stage import Stage

COLUMNS = ("MultiFieldQA", "2WikiMQA", "GovReport", "PassageRetrieval")


def variants(setting: Setting) -> list[Variant]:
    """D2O without its parts, and H2O."""
    even, everything = {"allocate": Uniform()}, {"merge": WeightedNearest(threshold=NoThreshold())}
    return [
        Variant("H2O", partial(kvjax.methods.h2o, budget=setting.budget), columns(COLUMNS, (17.22, 11.23, 21.29, 11.11))),
        Variant("D2O", partial(_with, setting), columns(COLUMNS, (19.93, 12.79, 24.36, 14.67))),
        Variant("w/o layer op", partial(_with, setting, **even), columns(COLUMNS, (18.89, 11.67, 22.45, 13.44))),
        Variant("w/o EMA threshold", partial(_with, setting, **everything), columns(COLUMNS, (19.23, 11.88, 22.85, 13.23))),
        Variant("w/o both", partial(_with, setting, **even, **everything), columns(COLUMNS, (17.85, 11.58, 21.87, 11.98))),
    ]


def _with(setting: Setting, **stages: Stage) -> kvjax.Policy:
    return kvjax.methods.d2o(budget=setting.budget).replace(**stages)


ABLATION = Ablation(
    title="D2O: components",
    source="arXiv 2406.13035, table 6 (Llama-3-8B, 20%)",
    variants=variants,
    budget=0.2,
    lengths=(512,),
    prompts=96,
)

if __name__ == "__main__":
    main(__file__)
