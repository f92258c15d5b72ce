"""Nats of what follows prompts that were cut, once or as decoding goes on."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

import kvjax
from experiments.tasks.example import block
from kvjax.train import Example


def answer_nats(
    lm: Any, policies: Mapping[str, kvjax.Policy], texts: Sequence[Example], *, decoding: bool = False
) -> dict[str, list[float]]:
    """Nats per labelled token of each text but the first of them, which the uncut prompt predicts; what stands before it is cut.

    Args:
        decoding: whether policies keep their schedules, a token at a time where they evict on it; else they cut once.
    """
    once = policies if decoding else {name: policy.replace(when=kvjax.AfterPrefill()) for name, policy in policies.items()}
    cuts = [text.label.index(True) for text in texts]
    pre = kvjax.prefill(lm, [list(text.ids[:at]) for text, at in zip(texts, cuts, strict=True)], needs=list(once.values()))
    rest = [list(text.ids[at:]) for text, at in zip(texts, cuts, strict=True)]
    told = [np.array(text.label[at + 1 :]) for text, at in zip(texts, cuts, strict=True)]
    found = {}
    for name, policy in once.items():
        read = kvjax.second_pass(lm, pre, policy)
        cache = kvjax.compress(read, policy)
        logits = kvjax.extend(lm, cache, rest, policy, return_logits=True, block=block(policy)).logits
        log_p = [jax.nn.log_softmax(row[: len(ids) - 1]) for row, ids in zip(logits, rest, strict=True)]
        said = [np.asarray(row)[np.arange(len(ids) - 1), ids[1:]] for row, ids in zip(log_p, rest, strict=True)]
        found[name] = [float(-x[of].mean()) for x, of in zip(said, told, strict=True)]
    return found
