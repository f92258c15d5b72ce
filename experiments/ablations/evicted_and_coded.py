"""Eviction, codes of four bits, and both: a quarter of the slots, a quarter of the bits of each, a sixteenth of the bytes."""

from collections.abc import Callable
from functools import partial

import kvjax
from experiments.ablations.ablation import Ablation, Setting, Variant
from experiments.ablations.run import main


def variants(setting: Setting) -> list[Variant]:
    """Two evicting methods, each with the storage of a method that evicts nothing."""
    methods, budget = kvjax.methods, setting.budget
    return [
        Variant("every token, 4 bits", _coded),
        Variant("snapkv", partial(methods.snapkv, budget=budget)),
        Variant("snapkv, 4 bits", partial(_both, methods.snapkv, budget)),
        Variant("compactor", partial(methods.compactor, budget=budget)),
        Variant("compactor, 4 bits", partial(_both, methods.compactor, budget)),
    ]


def _coded() -> kvjax.Policy:
    return kvjax.methods.turboquant(key_bits=4, value_bits=4)


def _both(build: Callable[..., kvjax.Policy], budget: int | float) -> kvjax.Policy:
    return build(budget=budget).replace(encode=_coded().encode)


ABLATION = Ablation(
    title="Eviction and codes: either and both",
    source="no paper, a crossing (`snapkv(budget=0.25).replace(encode=turboquant().encode)`)",
    variants=variants,
    budget=0.25,
    tasks="needle",
    prompts=50,
    note="Eviction decides by the exact prompt, codes are of what stays. TurboQuant's 4 bits take 4.25 a number.",
)

if __name__ == "__main__":
    main(__file__)
