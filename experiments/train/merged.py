"""What a model that DMC trained is worth: nats behind prompts it merged itself, beside the model it came from at as many slots."""

from collections.abc import Mapping, Sequence
from typing import Any

import kvjax
from experiments.train.answers import answer_nats
from kvjax.artefacts.artefact import Artefact
from kvjax.train import Example


def slots_of(lm: Any, artefact: Artefact, texts: Sequence[Example]) -> int:
    """Slots that a head of the trained model holds of a prompt, on average over heads and texts."""
    trained, policy = kvjax.artefacts.retrofitted(lm, artefact), kvjax.methods.dmc(artefact=artefact)
    prompts = [list(text.ids[: text.label.index(True)]) for text in texts]
    cache = kvjax.compress(kvjax.prefill(trained, prompts, needs=policy), policy)
    return max(1, round(float(cache.lengths.mean())))


def merged_nats(lm: Any, artefact: Artefact, texts: Sequence[Example], slots: int) -> dict[str, list[float]]:
    """`answer_nats` of the trained model and of the one it came from.

    learned: the trained model merges; trained, full cache: it holds every token.   untrained: the model as it came merges by the
    same rule, which no training told it: nearly every token stays.   streaming_llm, snapkv: as it came, heads of `slots` slots.
    """
    methods, trained = kvjax.methods, kvjax.artefacts.retrofitted(lm, artefact)
    usual = {name: getattr(methods, name)(budget=slots) for name in ("streaming_llm", "snapkv")}
    found = answer_nats(lm, {"full": methods.full(), **usual}, texts)
    found |= answer_nats(lm, {"untrained": methods.dmc(offset=float(artefact.settings["offset"]))}, texts)
    found |= answer_nats(trained, {"trained, full cache": methods.full()}, texts)
    return found | answer_nats(trained, {"learned": methods.dmc(artefact=artefact)}, texts)


def by_text(lm: Any, artefact: Artefact, texts: Mapping[str, Sequence[Example]]) -> tuple[int, dict[str, dict[str, list[float]]]]:
    """The slots of the first kind of texts, at which all kinds are compared, and `merged_nats` of each kind."""
    slots = slots_of(lm, artefact, next(iter(texts.values())))
    return slots, {name: merged_nats(lm, artefact, examples, slots) for name, examples in texts.items()}
