"""Feeding recorded tokens to a policy that evicts every k of them, watching what cannot be compared."""

from dataclasses import dataclass
from typing import Any

import numpy as np

import kvjax
from kvjax.policy import Policy
from kvjax.prefill.run import Prefilled
from tests.golden.margin import NOISE
from tests.reference.key_diff import key_diff
from tests.reference.key_norm import key_norm

#: Scorers that read the keys alone: their gaps at a cut can be computed from the cache.
KEY_SCORES = {"KeyNorm": key_norm, "KeyDiff": key_diff}


@dataclass(frozen=True)
class Replay:
    """What came out.

    Attributes:
        logits: [b, t, v] after each token. cache: at the end.
        labels: int [l, b, n + t], the recorder's name for each position (see `_name`).
        tied: int [b], tokens fed when a row first met scores too close to rank at a cut; t + 1 if never.
    """

    logits: np.ndarray
    cache: Any
    labels: np.ndarray
    tied: np.ndarray


def replay(lm, pre: Prefilled, policy: Policy, ids: list[list[int]]) -> Replay:
    """Feed `ids` one token at a time; at every cut look at the scores first."""
    steps, every = len(ids[0]), int(policy.when.k)
    cache = kvjax.compress(pre, policy, headroom=steps)
    patient = policy.replace(when=kvjax.Every(10**6, after_prefill=False))
    n, (layers, rows, _) = pre.lengths[0], cache.lengths.shape
    labels = np.tile(np.arange(n + steps), (layers, rows, 1))
    tied, logits = np.full(rows, steps + 1), []
    for at in range(0, steps, every):
        part = [row[at : at + every] for row in ids]
        _name(labels, cache, n + at, len(part[0]))
        uncut = kvjax.extend(lm, cache, part, patient, block=1).cache
        fed = kvjax.extend(lm, cache, part, policy, block=1, return_logits=True)
        cache = fed.cache
        logits.append(np.asarray(fed.logits))
        if at + every <= steps:
            tied = np.where(_too_close(uncut, policy), np.minimum(tied, at + every), tied)
    return Replay(np.concatenate(logits, axis=1), cache, labels, tied)


def _name(labels: np.ndarray, cache, first: int, count: int) -> None:
    """Number the next tokens as the recorder does: after the highest number that a layer still holds in any head.

    Where the newest tokens were evicted from all heads of a layer, its numbers fall behind the true positions.
    """
    for layer in range(labels.shape[0]):
        for row, heads in enumerate(cache.kept(layer)):
            last = labels[layer, row, np.concatenate(heads)].max()
            labels[layer, row, first : first + count] = last + 1 + np.arange(count)


def _too_close(uncut, policy: Policy) -> np.ndarray:
    """Rows in which some head's gap at its budget is within noise: in the first layer equal tokens have equal norms."""
    score = KEY_SCORES.get(type(policy.score).__name__)
    close = np.zeros(uncut.lengths.shape[1], bool)
    if score is None:
        return close
    k, start = np.asarray(uncut.k), np.asarray(uncut.start)
    for (layer, row, head), held in np.ndenumerate(uncut.lengths):
        first = start[layer, row, head]
        ranked = -np.sort(-score(k[None, first : first + held])[0])
        budget = int(policy.budget)
        close[row] |= held > budget and ranked[budget - 1] - ranked[budget] < NOISE * np.abs(ranked[budget:]).max()
    return close
