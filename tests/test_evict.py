"""Eviction while decoding against slow simulations: the first layer's queries and keys do not depend on what is evicted."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import kvjax
from kvjax.decode.evict import group
from kvjax.encode import Absolute, InCache, Unrotated
from kvjax.evidence import AttentionStatistics, ColumnSums
from kvjax.evidence.reduce import Sum
from kvjax.score import AccumulatedAttention, AllMean, NoPool, Recency, WindowAttention
from kvjax.select import BestAndSampled, TopK
from kvjax.stage import Scorer
from tests.conftest import ids_of, windowed
from tests.reference import streaming

PROMPT, STEPS, BUDGET = 40, 24, 16


@pytest.fixture(scope="module")
def first_layer(lm):
    """Token ids, and rotated queries [h, g, t, d] and keys [h, t, d] of layer 0 over prompt and continuation."""
    ids, taken = ids_of(PROMPT + STEPS, 7), {}

    def attend(heads):
        taken.update(q=np.asarray(heads.q[0]), k=np.asarray(heads.k[0]))
        return heads.q, None

    positions = jnp.arange(len(ids), dtype=jnp.int32)[None]
    x = lm.decoder.embed(lm.params, jnp.asarray([ids], jnp.int32))
    lm.decoder.layer(lm.params["layers"][0], x, positions, attend)
    return ids, taken["q"], taken["k"]


def simulate(first_layer, *, all_heads=False, **how):
    """What each KV head of layer 0 holds after the last step."""
    _, q, k = first_layer
    if all_heads:  # one ranking from the mean of every query head over its own keys
        rows = [streaming.rows_of(q[h], k[h]) for h in range(2)]
        row = lambda t, held: np.mean([r(t, held) for r in rows], 0)  # noqa: E731
        return [streaming.evict_loop(row, PROMPT, STEPS, budget=BUDGET, **how)[-1]] * 2
    return [streaming.evict_loop(streaming.rows_of(q[h], k[h]), PROMPT, STEPS, budget=BUDGET, **how)[-1] for h in range(2)]


def run(lm, ids, policy):
    cache = kvjax.compress(kvjax.prefill(lm, ids[:PROMPT]), policy)
    for token in ids[PROMPT:]:
        cache = kvjax.extend(lm, cache, [token], policy).cache
    return cache


@struct.dataclass
class OfTheStep(Scorer):
    """The attention of the step's queries alone, read where slots are scored."""

    @property
    def needs(self):
        return frozenset({ColumnSums()})

    def score(self, view, seen):
        return jnp.broadcast_to(seen.column_sums().mean(1, keepdims=True), view.pos.shape)


CASES = {
    "h2o": (
        kvjax.Policy(score=AccumulatedAttention(), select=TopK(recent=4), when=kvjax.Every(1), budget=BUDGET),
        dict(score=streaming.by_accumulated, recent=4),
    ),
    "h2o every 5, prompt whole": (
        kvjax.Policy(
            score=AccumulatedAttention(), select=TopK(sinks=2, recent=4), when=kvjax.Every(5, after_prefill=False), budget=BUDGET
        ),
        dict(score=streaming.by_accumulated, sinks=2, recent=4, every=5, after_prefill=False),
    ),
    "streaming": (
        kvjax.Policy(score=Recency(), select=TopK(sinks=3), when=kvjax.Every(1), budget=BUDGET),
        dict(score=streaming.by_recency, sinks=3),
    ),
    "tova": (
        kvjax.Policy(
            score=WindowAttention(window=1, pool=NoPool(), heads=AllMean()), when=kvjax.Every(1), budget=BUDGET
        ),
        dict(score=streaming.by_last_row, all_heads=True),
    ),
    "the step's attention": (
        kvjax.Policy(score=OfTheStep(), when=kvjax.Every(1, after_prefill=False), budget=BUDGET),
        dict(score=streaming.by_last_row, all_heads=True, after_prefill=False),
    ),
}  # fmt: skip


#: The rest runs with the slow tests.
QUICK = ("h2o", "tova", "the step's attention")


@pytest.mark.parametrize("case", [c if c in QUICK else pytest.param(c, marks=pytest.mark.slow) for c in CASES])
def test_first_layer_holds_what_the_simulation_holds(lm, first_layer, case):
    policy, how = CASES[case]
    cache = run(lm, first_layer[0], policy)
    for got, want in zip(cache.kept(0)[0], simulate(first_layer, **how), strict=True):
        np.testing.assert_array_equal(got, want)


def test_streaming_methods_hold_sinks_and_recent_in_every_layer(lm, first_layer):
    cache = run(lm, first_layer[0], kvjax.methods.streaming_llm(budget=BUDGET, sinks=4))
    for layer in range(3):
        for kept in cache.kept(layer)[0]:
            assert kept.tolist() == [0, 1, 2, 3, *range(PROMPT + STEPS - 12, PROMPT + STEPS)]
    window = run(lm, first_layer[0], kvjax.methods.local_window(budget=BUDGET))
    assert window.kept(2)[0][1].tolist() == list(range(PROMPT + STEPS - BUDGET, PROMPT + STEPS))


def test_slots_stay_aligned_through_evictions(lm, first_layer):
    """After any number of evictions the key in a slot is the key computed for the slot's position (layer 0)."""
    ids, _, k = first_layer
    for name in ("h2o", "tova", "streaming_llm"):
        cache = run(lm, ids, getattr(kvjax.methods, name)(budget=BUDGET))
        for h in range(2):
            start, length = int(cache.start[0, 0, h]), int(cache.length[0, 0, h])
            pos = np.asarray(cache.pos[start : start + length])
            np.testing.assert_allclose(cache.k[start : start + length], k[h, pos], atol=1e-5)


@pytest.mark.slow
def test_statistics_move_with_their_slots(lm, first_layer):
    """H2O's mass equals the sum of every attention row over what was held when it was paid."""
    ids, q, k = first_layer
    policy = kvjax.Policy(score=AccumulatedAttention(), when=kvjax.Every(1), budget=1000)
    cache = run(lm, ids, policy)
    row = streaming.rows_of(q[1], k[1])
    total = np.zeros(PROMPT + STEPS)
    for t in range(PROMPT + STEPS):
        total[: t + 1] += row(t, np.arange(t + 1))
    start = int(cache.start[0, 0, 1])
    np.testing.assert_allclose(cache.state.score[start : start + PROMPT + STEPS], total, rtol=1e-4)


def test_every_k_counts_blocks_of_known_tokens(lm, first_layer):
    policy = kvjax.methods.streaming_llm(budget=BUDGET).replace(when=kvjax.Every(8))
    cache = kvjax.compress(kvjax.prefill(lm, first_layer[0][:PROMPT]), policy)
    three = kvjax.extend(lm, cache, first_layer[0][PROMPT : PROMPT + 3], policy).cache
    assert (three.lengths == BUDGET + 3).all()
    ten = kvjax.extend(lm, three, first_layer[0][PROMPT + 3 : PROMPT + 10], policy).cache
    assert (ten.lengths == BUDGET).all()


def due(when, held, *, steps=1, new=1):
    """Of heads with a budget of 10 that hold so many slots."""
    row = lambda x: jnp.array([x], jnp.int32)  # noqa: E731
    found = when.due(row(steps), row(new), held=jnp.asarray(held, jnp.int32)[None, None], budget=jnp.full((1, 1, len(held)), 10))
    return found[0, 0].tolist()


def test_a_head_is_cut_once_it_holds_its_slack():
    """With a slack of 3 at 13 slots, and room for 2 more than the budget and the tokens of a block; a slack of 0 is one of 1."""
    assert due(kvjax.WhenFull(3), [9, 10, 12, 13, 14]) == [False, False, False, True, True]
    assert due(kvjax.WhenFull(0), [10, 11]) == due(kvjax.WhenFull(1), [10, 11]) == [False, True]
    assert [kvjax.WhenFull(3).headroom(new, block) for new, block in ((9, 1), (9, 4), (2, 1))] == [3, 6, 2]


def test_the_room_of_a_region_is_what_it_can_hold_between_two_evictions():
    """Of 10 slots and 5 to come: 15 at most by appending; the budget and a token before it is cut; or those and 4 more."""
    full = lambda when, budget: int(when.fullest(np.array([10]), np.array([budget]), 5, 1)[0])  # noqa: E731
    traded = kvjax.Every(1, reallocate=True, growth=4)
    assert [full(kvjax.AfterPrefill(), budget) for budget in (8, 1000)] == [15, 15]
    assert [full(kvjax.Every(1), budget) for budget in (8, 12, 1000)] == [11, 13, 15]
    assert [full(traded, budget) for budget in (8, 12, 1000)] == [10 + 5, 12 + 5, 15 + 5]


def test_every_third_token_is_due_wherever_a_block_ends():
    """Token 3 is, tokens 4 and 5 are not; a block of 2 that ends at 4 has the third in it. A head within its budget never is."""
    every = kvjax.Every(3)
    assert [due(every, [11], steps=steps) for steps in (2, 3, 4, 6)] == [[False], [True], [False], [True]]
    assert [due(every, [11], steps=steps, new=2) for steps in (4, 5, 7)] == [[True], [False], [True]]
    assert due(every, [9, 10, 11], steps=3) == [False, False, True]
    assert [every.headroom(new, block) for new, block in ((9, 1), (9, 4), (2, 1))] == [3, 6, 2]


SCHEDULES = [pytest.param(kvjax.Every(1), marks=pytest.mark.slow), kvjax.Every(7), kvjax.WhenFull(5)]


@pytest.mark.parametrize("when", SCHEDULES)
def test_a_block_longer_than_the_room_between_evictions_stays_in_its_region(lm, when):
    policy = kvjax.methods.streaming_llm(budget=40).replace(when=when)
    cache = kvjax.compress(kvjax.prefill(lm, [ids_of(200, 1), ids_of(150, 2)]), policy)
    read = kvjax.extend(lm, cache, [ids_of(60, 3), ids_of(44, 4)], policy).cache
    read = kvjax.decode(lm, read, policy, max_new_tokens=9, stop=()).cache
    for row, end in enumerate([269, 203]):
        for layer in range(3):
            for h in range(2):
                kept = read.kept(layer)[row][h]
                assert len(kept) >= 40 and kept[:4].tolist() == [0, 1, 2, 3]
                assert kept[4:].tolist() == list(range(end - len(kept) + 4, end))


#: Methods that evict while decoding, one that also merges, and one whose draws are a layer's own.
CUT_TOGETHER = {
    "h2o": kvjax.methods.h2o(budget=BUDGET),
    "d2o": kvjax.methods.d2o(budget=BUDGET),
    "drawn": kvjax.methods.h2o(budget=BUDGET).replace(select=BestAndSampled(sampled=0.5)),
}


@pytest.mark.parametrize("name", CUT_TOGETHER)
def test_layers_cut_one_by_one_are_cut_as_all_at_once(name, lm, monkeypatch):
    policy, ids = CUT_TOGETHER[name], ids_of(PROMPT + 6, 3)
    assert group.together(3, 128) == 3 and group.together(32, 1 << 18) == 4 and group.together(7, 1 << 19) == 1
    all_at_once = run(lm, ids, policy)
    monkeypatch.setattr(group, "AT_ONCE", 1)
    decoder = replace(lm.decoder, config=replace(lm.decoder.config, max_positions=1023))  # another program
    one_by_one = run(lm.replace(decoder=decoder), ids, policy)
    for x, y in zip(jax.tree.leaves(all_at_once), jax.tree.leaves(one_by_one), strict=True):
        np.testing.assert_array_equal(x, y)


@struct.dataclass
class Disagreeing(Sum):
    """How often a query is said to see a key that it gives nothing, or gives something to a key it is said not to see."""

    key = "disagreeing"

    def of_rows(self, p, positions, visible):
        del positions
        return (visible != (p > 0)).sum(3).astype(jnp.float32)


@struct.dataclass
class Counted(Scorer):
    """Recent tokens and some others stay; what is kept by slot is `Disagreeing`."""

    needs = frozenset({AttentionStatistics(Disagreeing())})

    def init(self, shape):
        return jnp.zeros(shape, jnp.float32)

    def observe(self, view, evidence):
        return view.state + evidence.of(AttentionStatistics(Disagreeing())).sum(2)

    def score(self, view, evidence):
        return jnp.where(view.pos % 3 == 0, view.pos, -1).astype(jnp.float32)


@pytest.mark.parametrize("positions", [InCache(), Unrotated(), Absolute()], ids=repr)
@pytest.mark.parametrize("block", [1, 4])
def test_what_a_query_sees_is_what_it_attends_to(lm, positions, block):
    """In layers with sliding windows, which count ranks where positions are ranks."""
    mixed = windowed(lm, (None, 8, 5))
    policy = kvjax.Policy(
        score=Counted(),
        select=kvjax.select.TopK(recent=3),
        when=kvjax.Every(1),
        budget=12,
        encode=kvjax.encode.Stored(positions=positions),
    )
    cache = kvjax.compress(kvjax.prefill(mixed, ids_of(40, 1), needs=policy), policy)
    cache = kvjax.extend(mixed, cache, ids_of(16, 2), policy, block=block).cache
    assert not cache.state.score.any()


@pytest.mark.parametrize("step", ["one by one", "many at a time"])
def test_each_layer_sums_attention_within_its_own_window(lm, step):
    """A query's probabilities sum to one, whatever its layer's window: the mass of all slots is the tokens there have been."""
    mixed = replace(lm.decoder, config=replace(lm.decoder.config, windows=(None, 12, None)))
    ids = ids_of(PROMPT + 7, 3)
    policy = CASES["h2o"][0].replace(budget=256)
    cache = kvjax.compress(kvjax.prefill(lm.replace(decoder=mixed), ids[:PROMPT], needs=policy), policy)
    for block in [[x] for x in ids[PROMPT:]] if step == "one by one" else [ids[PROMPT:]]:
        cache = kvjax.extend(lm.replace(decoder=mixed), cache, block, policy).cache
    mass, start, length = (np.asarray(x) for x in (cache.state.score, cache.start, cache.length))
    held = [mass[s : s + n].sum() for s, n in zip(start.ravel(), length.ravel(), strict=True)]
    assert (length == len(ids)).all()
    np.testing.assert_allclose(held, len(ids), rtol=1e-5)
