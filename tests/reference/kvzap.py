"""KVzap (arXiv 2601.07891): a map of hidden states predicts the logarithm of KVzip's score; what is low and not recent goes.

Token i is judged when the newest token is t and t - i >= window: what scores below the threshold is dropped, unless it is one of
the first. Where nothing would
be left of a head (a window of 0), its best slot stays.
"""

import math

import numpy as np
from jaxtyping import Float, Int

from .held import Held


def oracle(a: float, vo: float, h: float) -> float:
    """ln(A ||v W_o|| / ||h||) of the query that pays a token most."""
    return math.log(a * vo / h)


def gelu(x: Float[np.ndarray, "*a"]) -> Float[np.ndarray, "*a"]:
    """x Φ(x)."""
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def surrogate(x: Float[np.ndarray, "n e"], weights: dict) -> Float[np.ndarray, "n h"]:
    """x W + b, or gelu(x W1 + b1) W2 + b2."""
    if "up" in weights:
        x = gelu(x @ weights["up"]["kernel"] + weights["up"]["bias"])
    return x @ weights["down"]["kernel"] + weights["down"]["bias"]


class Head:
    """One KV head: after every piece what has left the window below the threshold goes."""

    def __init__(self, d: int, *, threshold: float, window: int, sinks: int = 0):
        self.held, self.scores, self.threshold, self.window = Held.empty(d), np.zeros(0), threshold, window
        self.sinks = sinks

    def extend(
        self,
        q: Float[np.ndarray, "g c d"],
        k: Float[np.ndarray, "c d"],
        v: Float[np.ndarray, "c d"],
        scores: Float[np.ndarray, " c"],
    ) -> tuple[Float[np.ndarray, "g c d"], Int[np.ndarray, "n"]]:
        """(output, positions held afterwards)."""
        out = self.held.extend(q, k, v)
        self.scores = np.append(self.scores, scores)
        stays = (self.held.pos >= self.held.seen - self.window) | (self.scores >= self.threshold) | (self.held.pos < self.sinks)
        if not stays.any():
            stays[np.argmax(self.scores)] = True
        self.held.keep(stays)
        self.scores = self.scores[stays]
        return out, self.held.pos
