"""Stages crossed with each other, on kvjax and written out (`tests.crossings.slow`): kept sets exactly, numbers to 1e-5.

Every run takes a scorer, an allocator, a merger and a schedule. A few run always. The slow tests take every scorer through three
allocators and a merger after the prompt and through a schedule while decoding, and every merger through two schedules, others for
each; with KVJAX_CROSSINGS=all each of them through all. All quadruples together would be some thirty thousand programs.
"""

import os

import numpy as np
import pytest

import kvjax
from kvjax.select import DenseAndTop, TopK
from tests.conftest import ids_of
from tests.crossings.slow import Slow
from tests.crossings.stages import ALLOCATORS, BUDGET, MERGERS, PROMPT, SCHEDULES, SCORERS

STEPS = 6
#: Scorers that want a second pass; with the slow tests.
SECOND_PASS = tuple(name for name, x in SCORERS.items() if any(need.second_pass for need in x.needs))
_FIRST = [name for name in SCORERS if name not in SECOND_PASS]

#: What runs always; the rest of both lists runs with the slow tests.
QUICK_ALLOCATORS = (
    "Adaptive",
    "AdaptiveRounded",
    "AllocateByLayer",
    "LazyLayers",
    "Pyramid",
    "RoleBudgets",
    "ThreeGroups",
    "Uniform",
)
QUICK_SCORERS = ("AccumulatedAttention", "FadingAttention", "KeyDiff", "RawMass")
WHILE_DECODING = (
    ("AccumulatedAttention", "AttentionVariance", "WeightedNearest", "Every"),
    ("FadingAttention", "Uniform", "IntoDense", "WhenFull"),
    ("KeyDiff", "AcrossModel", "MatchedAttention", "AfterPrefill"),
    ("StepAttention", "LayerWeights", "Convolved", "WhenFull"),
    ("RawMass", "Adaptive", "ByVotes", "Every(reallocate=True)"),
    ("SteadyMean", "Pyramid", "ProportionalNearest", "Every"),
    ("TemperedAttention", "FullHeads", "GaussianRuns", "Every"),
    ("WindowAttention", "RoleBudgets", "ByChance", "Every(grows=True)"),
)


_PREFILLED = {}


def prefilled(lm, second_pass: bool) -> kvjax.Prefilled:
    """A prompt with the evidence of every stage; with second passes if asked. Made once."""
    if second_pass not in _PREFILLED:
        _PREFILLED[second_pass] = _prefill(lm, second_pass)
    return _PREFILLED[second_pass]


def _prefill(lm, second_pass: bool) -> kvjax.Prefilled:
    scorers = [x for name, x in SCORERS.items() if second_pass or name not in SECOND_PASS]
    needs = kvjax.evidence.union(*(x.needs for x in (*scorers, *ALLOCATORS.values(), *MERGERS.values())))
    pre = kvjax.prefill(lm, ids_of(PROMPT, 3), needs=needs)
    return kvjax.second_pass(lm, pre, needs) if second_pass else pre


def crossed(score, allocate="Uniform", merge="Drop", when="AfterPrefill") -> kvjax.Policy:
    parts = dict(score=SCORERS[score], allocate=ALLOCATORS[allocate], merge=MERGERS[merge], when=SCHEDULES[when])
    select = DenseAndTop(dense=2) if merge == "IntoDense" else TopK(sinks=1, recent=2)
    return kvjax.Policy(**parts, select=select, budget=BUDGET)


def written_out(policy) -> bool:
    """Whether `Slow` has what it reads: not what is of the model's output while decoding."""
    return not policy.when.decoding or not any(need.whole_model for need in policy.decode_score.needs)


def accepted(lm, policy) -> bool:
    try:
        policy.check(lm.decoder, PROMPT)
    except ValueError:
        return False
    return True


def same_kept(cache, slow) -> None:
    for layer, heads in enumerate(slow.kept()):
        for h, pos in enumerate(heads):
            np.testing.assert_array_equal(cache.kept(layer)[0][h], pos, err_msg=f"layer {layer}, head {h}")


def same_slots(cache, slow) -> None:
    """Keys, values and biases of every slot, after the prompt."""
    same_kept(cache, slow)
    for layer, table in enumerate(slow.tables):
        for h, held in enumerate(table.held):
            at = slice(start := int(cache.start[layer, 0, h]), start + held)
            for mine, theirs in ((cache.k, table.k), (cache.v, table.v), (cache.bias, table.bias)):
                if mine is not None:
                    np.testing.assert_allclose(mine[at], theirs[0, h, :held], atol=1e-5, err_msg=f"layer {layer}, head {h}")


def agree_after_prompt(lm, policy, second_pass=False) -> None:
    pre = prefilled(lm, second_pass)
    slow = Slow(lm, pre, policy)
    slow.after_prompt()
    same_slots(kvjax.compress(pre, policy), slow)


def agree(lm, policy, second_pass=False, steps=STEPS) -> None:
    """The cache after the prompt and after `steps` tokens, and their logits."""
    pre, tokens = prefilled(lm, second_pass), ids_of(steps, 11)
    cache, slow = kvjax.compress(pre, policy), Slow(lm, pre, policy)
    slow.after_prompt()
    same_slots(cache, slow)
    fed = kvjax.extend(lm, cache, tokens, policy, block=1, return_logits=True)
    logits = slow.tokens(tokens, np.asarray(fed.cache.capacity))
    same_kept(fed.cache, slow)
    np.testing.assert_allclose(fed.logits[0], logits, atol=1e-5)


def _turned(names: list[str], i: int) -> str:
    return names[i % len(names)]


def _after_prompt(lm, i: int) -> kvjax.Policy:
    """The i-th allocator with a scorer and a merger that go with it."""
    allocators, mergers = list(ALLOCATORS), list(MERGERS)
    for turn in range(len(SCORERS)):
        policy = crossed(_turned(_FIRST, 5 * i + turn), allocators[i], _turned(mergers, i))
        if accepted(lm, policy):
            return policy
    raise AssertionError(f"no scorer goes with {allocators[i]} and {_turned(mergers, i)}")


def slow_unless(quick: bool, value, name: str):
    return pytest.param(value, id=name, marks=() if quick else pytest.mark.slow)


@pytest.mark.parametrize("i", [slow_unless(name in QUICK_ALLOCATORS, i, name) for i, name in enumerate(ALLOCATORS)])
def test_after_the_prompt(lm, i):
    agree_after_prompt(lm, _after_prompt(lm, i))


@pytest.mark.parametrize("row", [slow_unless(row[0] in QUICK_SCORERS, row, "-".join(row)) for row in WHILE_DECODING])
def test_while_decoding(lm, row):
    agree(lm, crossed(*row))


def run_all(lm, rows, run) -> None:
    """Every row that is accepted; what fails is named together."""
    wrong = {}
    for row in rows:
        policy = crossed(*row)
        if accepted(lm, policy) and written_out(policy):
            try:
                run(lm, policy, row[0] in SECOND_PASS)
            except AssertionError as error:
                wrong["-".join(row)] = " ".join(str(error).split())[:200]
    assert wrong == {}


def share(rows: list, turn: int, count: int) -> list:
    """`count` rows, others at every turn so that all of them take part; all rows where $KVJAX_CROSSINGS is "all"."""
    if os.environ.get("KVJAX_CROSSINGS") == "all":
        return rows
    first = count * turn
    return [rows[(first + j) % len(rows)] for j in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("score", SCORERS)
def test_every_scorer_with_allocators_and_mergers(lm, score):
    turn = list(SCORERS).index(score)
    allocators = share([(score, allocate) for allocate in ALLOCATORS], turn, 3)
    run_all(lm, allocators + share([(score, "Uniform", merge) for merge in MERGERS], turn, 1), agree_after_prompt)


@pytest.mark.slow
@pytest.mark.parametrize("score", SCORERS)
def test_every_scorer_with_schedules(lm, score):
    mergers, i = list(MERGERS), list(SCORERS).index(score)
    rows = [(score, "Uniform", _turned(mergers, i + j), when) for j, when in enumerate(SCHEDULES)]
    plain = [(score, "Uniform", "Drop", when) for when in SCHEDULES]
    taken = [one if accepted(lm, crossed(*one)) else other for one, other in zip(rows, plain, strict=True)]
    run_all(lm, share(taken, i, 1), agree)


@pytest.mark.slow
@pytest.mark.parametrize("merge", MERGERS)
def test_every_merger_with_schedules(lm, merge):
    score = "RawMass" if merge == "ByVotes" else "AccumulatedAttention"
    run_all(lm, share([(score, "Adaptive", merge, when) for when in SCHEDULES], list(MERGERS).index(merge), 2), agree)
