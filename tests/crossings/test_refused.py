"""docs/crossings.md says which pairs of stages are refused, and the library refuses just these, before anything is traced."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

import kvjax
from kvjax import allocate, merge, score, select
from kvjax.stage import Allocator, Merger, Scorer, Selector
from tests.conftest import policy_of
from tests.crossings.stages import ALLOCATORS, BUDGET, MERGERS, PROMPT, SCHEDULES, SCORERS, SELECTORS

STAGES = {"score": SCORERS, "allocate": ALLOCATORS, "select": SELECTORS, "merge": MERGERS, "when": SCHEDULES}
#: What stands in the other places of a pair: it is refused if none of these makes it a policy.
BESIDE = {
    "score": tuple(SCORERS[name] for name in ("AccumulatedAttention", "RawMass", "WorstCase", "LateAttention", "SteadyMean")),
    "allocate": (allocate.Uniform(),),
    "select": (select.TopK(),),
    "merge": (merge.Drop(),),
    "when": (kvjax.AfterPrefill(),),
}
DOC = Path(__file__).parents[2] / "docs" / "crossings.md"


def accepted(lm, stages: dict) -> bool:
    try:
        kvjax.Policy(**stages, budget=BUDGET).check(lm.decoder, PROMPT)
    except ValueError as error:
        assert len(str(error)) > 40, "an error says what was expected and what to do"
        return False
    return True


def refused(lm) -> set[frozenset[str]]:
    """Pairs of names that no policy of `BESIDE` takes."""
    found = set()
    for one, other in itertools.combinations(STAGES, 2):
        rest = [slot for slot in BESIDE if slot not in (one, other)]
        besides = [dict(zip(rest, choice, strict=True)) for choice in itertools.product(*(BESIDE[slot] for slot in rest))]
        for (a, x), (b, y) in itertools.product(STAGES[one].items(), STAGES[other].items()):
            if not any(accepted(lm, {one: x, other: y} | beside) for beside in besides):
                found.add(frozenset({a, b}))
    return found


def told() -> set[frozenset[str]]:
    """The pairs of the table: its first two columns, names in backticks; "every scorer but" names the others."""
    found = set()
    for line in DOC.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 3 or "`" not in cells[0]:
            continue
        these, those = (re.findall(r"`([^`]+)`", cell) for cell in cells[:2])
        if cells[1].startswith("every scorer but"):
            those = sorted(set(SCORERS) - set(those))
        found |= {frozenset(pair) for pair in itertools.product(these, those)}
    return found


def test_the_table_is_what_the_library_does(lm):
    mine, written = refused(lm), told()
    assert sorted(map(sorted, mine - written)) == []
    assert sorted(map(sorted, written - mine)) == []


@pytest.mark.parametrize("slot, kind", [("score", Scorer), ("allocate", Allocator), ("select", Selector), ("merge", Merger)])
def test_every_stage_of_the_library_is_crossed(slot, kind):
    inner = {"Everything"}  # a kind of layer inside AllocateByLayer
    module = getattr(kvjax, slot)
    classes = {
        name for name in module.__all__ if isinstance(getattr(module, name), type) and issubclass(getattr(module, name), kind)
    }
    assert classes - inner == set(STAGES[slot])


def test_a_refusal_is_raised_before_anything_is_traced(lm, pre):
    """By `compress` and by `prefill(streaming=)`, with a message that names both stages."""
    policy = kvjax.Policy(score=score.NonCausalAttention(), when=kvjax.Every(1), budget=BUDGET)
    with pytest.raises(ValueError, match="NonCausalAttention reads the prompt in a way that is not defined while decoding"):
        kvjax.compress(pre, policy)
    policy = kvjax.Policy(select=select.EachChunk(size=8), when=kvjax.WhenFull(2), budget=BUDGET)
    with pytest.raises(ValueError, match="EachChunk may leave more slots than the budget, for which WhenFull has no room"):
        kvjax.compress(pre, policy)


@pytest.mark.parametrize("chosen", [select.Chunks(size=20), select.Fixed(count=100), select.AtLeast(inner=select.Chunks())])
def test_what_may_leave_more_than_the_budget_is_refused_without_room_for_it(lm, chosen):
    """Six whole chunks of 20 are 120 slots where 110 of 121 are asked for, and a fixed count is no budget's."""
    for when in (kvjax.Every(21), kvjax.WhenFull(2)):
        with pytest.raises(ValueError, match=f"{type(chosen).__name__} may leave more slots than the budget"):
            kvjax.Policy(select=chosen, when=when, budget=110).check(lm.decoder, 200)
    kvjax.Policy(select=chosen, when=kvjax.Every(21, grows=True), budget=110).check(lm.decoder, 200)


def test_chunks_cut_to_the_budget_have_room(lm):
    policy = kvjax.Policy(score=score.KeyNorm(), select=select.Chunks(size=20, whole=False), when=kvjax.Every(21), budget=110)
    cache = kvjax.compress(kvjax.prefill(lm, list(range(100)) * 2), policy)
    end = kvjax.decode(lm, cache, policy, max_new_tokens=43, stop=()).cache
    assert (end.lengths == 110 + 43 % 21).all() and (end.lengths <= end.capacity).all()


@pytest.mark.parametrize("name", ["fasa", "fastdecode", "heterocache", "infllm", "mpcache", "quest"])
def test_slots_that_must_keep_their_place_are_not_evicted_while_decoding(lm, name):
    reader = policy_of(name).retrieve
    for retrieve in (reader, kvjax.retrieve.MaskHeads(mask=np.zeros((3, 4), bool), inner=reader)):
        for when in (when for when in SCHEDULES.values() if when.decoding):
            policy, names = policy_of("tova").replace(retrieve=retrieve, when=when), (type(retrieve).__name__, type(when).__name__)
            with pytest.raises(ValueError, match="{} needs slots that keep their place, {} evicts".format(*names)):
                policy.check(lm.decoder, PROMPT)


def test_the_page_names_the_retrievers_that_need_it():
    stages = [getattr(kvjax.retrieve, name) for name in kvjax.retrieve.__all__]
    found = {stage.__name__ for stage in stages if getattr(stage, "still", None) is True}
    (sentence,) = re.findall(r"`Retriever.still`: ([^)]*)\)", DOC.read_text())
    assert set(re.findall(r"`(\w+)`", sentence)) == found
