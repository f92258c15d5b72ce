"""One KV head of one layer, decoded token by token under an eviction rule.

A rule is an object with `held` (positions, ascending), `prefill(a)` and `step(a, t)`, t the position of the new token. `a` is
what the query heads of the KV head show of the held positions and the new one: probabilities, or logits where the rule asks
for them. The token attends to everything held and to itself; the rule evicts afterwards.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from jaxtyping import Float, Int

from .softmax import softmax


class Rule(Protocol):
    """What is held by one KV head, and how that changes."""

    held: Int[np.ndarray, "s"]

    def prefill(self, a: Float[np.ndarray, "g n n"]) -> None: ...

    def step(self, a: Float[np.ndarray, "g s"], t: int) -> None: ...


@dataclass
class Step:
    """What is held after a token, and what the token attended to: out [g d], none after the prompt."""

    held: Int[np.ndarray, "s"]
    out: np.ndarray | None


def as_logits(z: Float[np.ndarray, "*a s"]) -> Float[np.ndarray, "*a s"]:
    """For rules that take logits."""
    return z


def logits(q: Float[np.ndarray, "g d"], k: Float[np.ndarray, "s d"]) -> Float[np.ndarray, "g s"]:
    """q . k / sqrt(d)."""
    return q.astype(np.float64) @ k.astype(np.float64).T / np.sqrt(q.shape[-1])


def causal_logits(q: Float[np.ndarray, "g n d"], k: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "g n n"]:
    """The same for a whole prompt, -inf for later keys."""
    z = np.stack([logits(head, k) for head in q])
    n = len(k)
    return np.where(np.arange(n)[None] <= np.arange(n)[:, None], z, -np.inf)


def decode_head(
    rule: Rule,
    q: Float[np.ndarray, "g t d"],
    k: Float[np.ndarray, "t d"],
    v: Float[np.ndarray, "t d"],
    prompt: int,
    *,
    show: Callable = softmax,
) -> list[Step]:
    """What happens after the prompt's first `prompt` tokens and after each of the others. Keys are already rotated."""
    rule.prefill(show(causal_logits(q[:, :prompt], k[:prompt])))
    history = [Step(rule.held.copy(), None)]
    for t in range(prompt, len(k)):
        at = np.append(rule.held, t)
        z = logits(q[:, t], k[at])
        out = softmax(z) @ v[at].astype(np.float64)
        rule.step(show(z), t)
        history.append(Step(rule.held.copy(), out))
    return history
