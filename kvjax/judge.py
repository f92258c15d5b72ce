"""Judge: what a scorer and an allocator make of a prefilled prompt, before any budget is given."""

from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kvjax import evidence as ev
from kvjax.budget import check_budget
from kvjax.policy import Policy
from kvjax.prefill import Prefilled, PrefilledRow
from kvjax.view import LayerView


def check(pre: Prefilled, policy: Policy) -> None:
    """Raise TypeError or ValueError for everything that can be wrong, before anything is traced."""
    if not isinstance(policy, Policy):
        raise TypeError(f"expected a kvjax policy such as kvjax.methods.snapkv(budget=256); got {policy!r}")
    check_budget(policy.budget)
    for length in pre.lengths:
        policy.check(pre.decoder, length)
    lacking = ev.missing(pre.needs, policy.needs)
    if lacking:
        raise ValueError(
            f"{type(policy.score).__name__} reads {', '.join(map(str, lacking))}, which this prefill did not record "
            f"(it has {', '.join(map(str, pre.needs)) or 'nothing'}): run kvjax.prefill(lm, ids, needs=policy), or leave needs= out"
        )


@dataclass(frozen=True)
class Judged:
    """What a scorer and an allocator made of prompts, for every policy that has both.

    Attributes:
        pre: the prompts.   by: the scorer and the allocator.
        rows: of each prompt: scores [l, 1, h, n], each layer's statistics, and what was measured [l, ...].
    """

    pre: Prefilled
    by: tuple
    rows: list[tuple]

    def serves(self, pre: Prefilled, policy: Policy) -> bool:
        """Whether it is of these prompts, by the policy's scorer and allocator."""
        return self.pre is pre and _alike(self.by, (policy.score, policy.allocate))


def _alike(one: Any, two: Any) -> bool:
    """Whether two stages, or tuples of them, are of the same types and hold the same numbers all through.

    Tree structures cannot tell: to jaxlib (0.11) those of two dataclasses with equal fields are equal, whatever their classes.
    """
    if type(one) is not type(two):
        return False
    if is_dataclass(one):
        return all(_alike(getattr(one, field.name), getattr(two, field.name)) for field in fields(one))
    if isinstance(one, tuple):
        return len(one) == len(two) and all(map(_alike, one, two))
    return one is two or np.array_equal(one, two)


def judge(pre: Prefilled, policy: Policy) -> Judged:
    """Score every slot, once for any number of budgets and selections: `compress(pre, policy, judged=...)`.

    Raises:
        TypeError, ValueError: as `compress`.
    """
    check(pre, policy)
    return judged_by(pre, policy)


def judged_by(pre: Prefilled, policy: Policy) -> Judged:
    """`judge` of what has been checked."""
    return Judged(pre=pre, by=(policy.score, policy.allocate), rows=[_judge_row(row, policy) for row in pre.rows])


def _judge_row(row: PrefilledRow, policy: Policy) -> tuple:
    judged = [
        _judge(policy.score.at(layer), policy.allocate.at(layer), k, v, row.length, seen)
        for layer, (k, v, seen) in enumerate(zip(row.k, row.v, row.evidence, strict=True))
    ]
    scores, stats, measured = zip(*judged, strict=True)
    return jnp.stack(scores), list(stats), jax.tree.map(lambda *x: jnp.stack(x), *measured)


@jax.jit
def _judge(scorer, allocate, k, v, length, seen):
    """One layer's scores, the scorer's statistics, and what the allocator measures."""
    zeros = {name: jnp.zeros(k.shape[:3], jnp.float32) for name in scorer.stats}
    view = LayerView.of_prompt(length, k.shape[:3], k=k, v=v, stats=zeros)
    view = view.replace(stats=scorer.observe(view, seen))
    return scorer.score(view, seen), view.stats, allocate.measure(view, seen)
