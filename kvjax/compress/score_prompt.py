"""What a scorer and an allocator make of a prefilled prompt, before any budget is given."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, PyTree

from kvjax import evidence as ev
from kvjax.budget import check_budget
from kvjax.compress.stage_checks import check_scores
from kvjax.policy import Policy
from kvjax.prefill.prefilled import Prefilled, PrefilledRow
from kvjax.stage import Allocator, Scorer
from kvjax.view import LayerView


def check(pre: Prefilled, policy: Policy) -> None:
    """Raise TypeError or ValueError for everything that can be wrong, before anything is traced."""
    if not isinstance(pre, Prefilled):
        raise TypeError(f"expected prompts from kvjax.prefill(lm, ids); got {type(pre).__name__}")
    if not isinstance(policy, Policy):
        raise TypeError(f"expected a kvjax policy such as kvjax.methods.snapkv(budget=256); got {policy!r}")
    check_budget(policy.budget)
    for length in pre.lengths:
        policy.check(pre.decoder, length)
    if policy.select.leaves:
        raise ValueError(
            f"tokens that {type(policy.select).__name__} drops leave the layers that follow, which have computed them here: run "
            "kvjax.prefill(lm, ids, streaming=policy), or kvjax.generate"
        )
    lacking = ev.missing(pre.needs, policy.needs)
    if lacking:
        raise ValueError(
            f"{_reader(policy, lacking)} reads {', '.join(map(str, lacking))}, which this prefill did not record "
            f"(it has {', '.join(map(str, pre.needs)) or 'nothing'}): {' and '.join(sorted({need.advice for need in lacking}))}"
        )


def _reader(policy: Policy, lacking: frozenset[ev.Need]) -> str:
    """The stage to name: the encoder where it is the one that reads, else the scorer."""
    return type(policy.encode if lacking <= policy.encode.needs else policy.score).__name__


class RowScores(NamedTuple):
    """Of one prompt, all layers: both rankings, each layer's state of the scorer decoding goes on with, and what was measured."""

    scores: Float32[Array, "l 1 h n"]
    second: PyTree
    state: tuple[PyTree, ...]
    measured: PyTree


@dataclass(frozen=True)
class PromptScores:
    """What a scorer and an allocator made of prompts, for every policy that has both.

    Attributes:
        pre: the prompts.   by: the scorer, the scorer while decoding, and the allocator.
        rows: what was made of each prompt.
    """

    pre: Prefilled
    by: tuple[Scorer, Scorer, Allocator]
    rows: list[RowScores]

    def serves(self, pre: Prefilled, policy: Policy) -> bool:
        """Whether it is of these prompts, by the policy's scorers and allocator."""
        return self.pre is pre and _alike(self.by, (policy.score, policy.decode_score, policy.allocate))


def _alike(one: object, two: object) -> bool:
    """Whether two stages, or tuples of them, are of the same types and hold the same numbers all through.

    Tree structures cannot tell: to jaxlib (0.11) those of two dataclasses with equal fields are equal, whatever their classes.
    """
    if type(one) is not type(two):
        return False
    if is_dataclass(one):
        return all(_alike(getattr(one, field.name), getattr(two, field.name)) for field in fields(one))
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(_alike(one[name], two[name]) for name in one)
    if isinstance(one, tuple):
        return len(one) == len(two) and all(map(_alike, one, two))
    return one is two or np.array_equal(one, two)


def score_prompt(pre: Prefilled, policy: Policy) -> PromptScores:
    """Score every slot, once for any number of budgets and selections: `compress(pre, policy, scores=...)`.

    Raises:
        TypeError, ValueError: as `compress`.
    """
    check(pre, policy)
    return scores_of(pre, policy)


def scores_of(pre: Prefilled, policy: Policy) -> PromptScores:
    """`score_prompt` of what has been checked."""
    by = policy.score, policy.decode_score, policy.allocate
    return PromptScores(pre=pre, by=by, rows=[score_row(row, policy, pre.layers) for row in pre.rows])


def score_row(row: PrefilledRow, policy: Policy, which: range) -> RowScores:
    decode_score, layers, ids = policy.when.score, [], row.ids[None]
    for layer, k, v, evidence in zip(which, row.k, row.v, row.evidence, strict=True):
        score, allocate = policy.score.at(layer), policy.allocate.at(layer)
        other = None if decode_score is None else decode_score.at(layer)
        layers.append(score_layer(score, other, allocate, k, v, ids, row.length, evidence, row.pos))
    scores, second, states, measured = zip(*layers, strict=True)
    scores, second, measured = _stacked((scores, second, measured))
    return RowScores(scores, second, states, measured)


@jax.jit
def _stacked(many: tuple[Sequence[PyTree], ...]) -> tuple[PyTree, ...]:
    """The layers of each as one array a leaf."""
    return tuple(jax.tree.map(lambda *x: jnp.stack(x), *layers) for layers in many)


@jax.jit
def score_layer(score: Scorer, decode_score: Scorer | None, allocate: Allocator, k, v, ids, length, evidence, pos=None):
    """One layer's scores and second ranking, the state decoding goes on with, and what the allocator measures."""
    view = LayerView.of_prompt(length, k.shape[:3], k=k, v=v, ids=ids, pos=pos)
    mine = _observed(score, view, evidence)
    state = mine.state if decode_score is None else _observed(decode_score, view, evidence).state
    scores = score.score(mine, evidence)
    check_scores(score, scores, view.pos.shape)
    return scores, score.second(mine, evidence, scores), state, allocate.measure(view, evidence)


def _observed(score: Scorer, view: LayerView, evidence: ev.Evidence) -> LayerView:
    """The view with the scorer's state after the prompt."""
    view = view.replace(state=score.init(view.pos.shape))
    return view.replace(state=score.observe(view, evidence))
