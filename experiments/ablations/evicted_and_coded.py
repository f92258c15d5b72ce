"""Eviction, codes of four bits, and both: a quarter of the slots, a quarter of the bits of each, a sixteenth of the bytes."""

from collections.abc import Callable

import kvjax
from experiments.ablations.ablation import Ablation, Setting, Variant
from experiments.ablations.run import main


def variants(setting: Setting) -> list[Variant]:
    """Two evicting methods, each with the storage of a method that evicts nothing."""
    methods = kvjax.methods
    coded = methods.turboquant(key_bits=4, value_bits=4)

    def evicting(build: Callable[..., kvjax.Policy]) -> kvjax.Policy:
        return build(budget=setting.budget)

    def both(build: Callable[..., kvjax.Policy]) -> kvjax.Policy:
        return evicting(build).replace(encode=coded.encode)

    return [
        Variant("every token, 4 bits", lambda: coded),
        Variant("snapkv", lambda: evicting(methods.snapkv)),
        Variant("snapkv, 4 bits", lambda: both(methods.snapkv)),
        Variant("compactor", lambda: evicting(methods.compactor)),
        Variant("compactor, 4 bits", lambda: both(methods.compactor)),
    ]


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
