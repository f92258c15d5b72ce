"""CompressKV against its NumPy transcription: what is kept, how much, what decoding gives; masked heads."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvjax
from kvjax.allocate import Adaptive, ArgMax, LayerWeights, RoundRobin, Uniform
from kvjax.allocate.layer_weights import layer_budgets
from kvjax.artefacts.artefact import Artefact
from kvjax.calibrate.retrieval_heads import top_heads
from kvjax.encode import Stored, Unrotated
from kvjax.methods.compresskv import compresskv
from kvjax.retrieve import MaskHeads, ZeroOutput, ZeroQuery
from kvjax.score import AvgPool, RetrievalHeads
from kvjax.score.retrieval_heads import by_position, head_scores, mass_of_heads
from kvjax.select import TopK
from tests.conftest import ids_of
from tests.eager import dense, run_dense
from tests.reference import compresskv as ref
from tests.reference.test_examples_compresskv import HEAD_A, HEAD_B, K3

HEADS = np.array([[2, 0], [3, 1], [1, 2]], np.int32)
WEIGHTS = np.array([0.5, 0.2, 0.3], np.float32)


def toy(budget=40, allocate=None, window=8, heads=HEADS, **changes):
    allocate = allocate or LayerWeights(WEIGHTS, floor=12, origin="toy")
    score = RetrievalHeads(heads, window=window, origin="toy")
    return kvjax.Policy(score=score, allocate=allocate, select=TopK(recent=window), budget=budget, **changes)


def window_rows(pre, layer, heads, window=8):
    """The chosen heads' attention rows, by the transcription."""
    row, n = pre.rows[0], pre.lengths[0]
    q, k = np.asarray(row.evidence[layer].window_queries(window))[0], np.asarray(row.k[layer])[0, :, :n]
    g = q.shape[1]
    return np.stack([ref.window_rows(q[h // g, h % g], k[h // g]) for h in heads])


def budgets_of(share, mean, n=10_000, floor=32, cap=3, repair=RoundRobin()):
    e, mean, n = (jnp.atleast_1d(jnp.asarray(x, t)) for x, t in ((share, "float32"), (mean, "int32"), (n, "int32")))
    return np.asarray(jitted(e, mean, n, floor=floor, cap=cap, repair=repair))


jitted = jax.jit(layer_budgets)


@pytest.mark.parametrize("budget, share, round_robin, argmax", K3[:-1])
def test_k3_budgets(budget, share, round_robin, argmax):
    assert budgets_of(share, budget).tolist() == [round_robin]
    assert budgets_of(share, budget, repair=ArgMax()).tolist() == [argmax or round_robin]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1, 3, 8]), st.integers(32, 4000), st.sampled_from([RoundRobin(), ArgMax()]))
def test_budgets_are_those_of_the_transcription(seed, layers, mean, repair):
    share = np.random.default_rng(seed).dirichlet(np.full(layers, 0.7)).astype(np.float32)
    exact = share.astype(np.float64)
    name = {RoundRobin: "round_robin", ArgMax: "argmax"}[type(repair)]
    assert budgets_of(share, mean, repair=repair, n=100_000)[0].tolist() == ref.layer_budgets(list(exact), mean, repair=name)


def test_a_batch_gets_each_its_own_total_and_no_layer_more_than_the_prompt():
    got = budgets_of([0.7, 0.2, 0.1], [40, 60, 25], n=[90, 64, 25])
    assert got.sum(-1).tolist() == [120, 180, 75] and (got.max(-1) <= [90, 64, 25]).all()


@pytest.mark.parametrize("share", [[0.0, 0.0, 0.0], [0.5, np.nan, 0.2], [0.5, np.inf, 0.2]])
def test_no_usable_weights_are_uniform_ones(share):
    assert budgets_of(share, 50).tolist() == [[50, 50, 50]]


def test_weights_that_do_not_sum_to_one_are_shares_of_their_sum():
    assert budgets_of([3.0, 2.0, 1.0], 64).tolist() == budgets_of([1 / 2, 1 / 3, 1 / 6], 64).tolist()


def test_k2_scores():
    a = jnp.asarray([HEAD_A, HEAD_B], jnp.float32)[None]
    a = jnp.pad(a, ((0, 0), (0, 0), (0, 0), (0, 2)))
    p = head_scores(a.sum(2), jnp.broadcast_to(jnp.arange(6) < 4, (1, 2, 6)), AvgPool(3)).mean(1)
    np.testing.assert_allclose(p[0, :4], [0.2, 0.4, 0.366667, 0.316667], atol=1e-6)


@pytest.mark.parametrize("seed", [0, 3, 4])
def test_kept_sets_are_those_of_the_transcription(lm, seed):
    pre = kvjax.prefill(lm, ids_of(90, seed))
    cache = kvjax.compress(pre, toy())
    budgets = ref.layer_budgets([0.5, 0.2, 0.3], 40, m=12)
    for layer, budget in enumerate(budgets):
        rows = window_rows(pre, layer, HEADS[layer])
        ordered = np.sort(ref.selection_scores(rows[..., :82]))[::-1]
        assert ordered[budget - 9] - ordered[budget - 8] > 1e-7  # a margin above rounding
        for kept in cache.kept(layer)[0]:
            assert kept.tolist() == ref.kept(rows, budget).tolist()


def test_every_kv_head_keeps_the_same_tokens_and_the_window(lm):
    cache = kvjax.compress(kvjax.prefill(lm, [ids_of(90), ids_of(61, 5)]), toy())
    assert cache.lengths.sum((0, 2)).tolist() == [240, 240]
    for layer in range(3):
        for (one, two), n in zip(cache.kept(layer), (90, 61), strict=True):
            assert one.tolist() == two.tolist() and set(range(n - 8, n)) <= set(one)


def test_decoding_gives_the_logits_of_dense_attention_over_what_was_kept(lm, pre):
    out = kvjax.decode(lm, kvjax.compress(pre, toy()), toy(), max_new_tokens=64, stop=(), return_logits=True)
    kept = [kvjax.compress(pre, toy()).kept(layer)[0][0] for layer in range(3)]
    want, _ = run_dense(lm, dense(pre, kept), out.tokens[0], start=90)
    np.testing.assert_allclose(out.logits[0, 1:], want[:-1], atol=1e-5)


@pytest.mark.parametrize("budget", [90, 1000, 1.0])
def test_budget_at_length_is_the_full_cache_to_the_bit(lm, pre, budget):
    full = kvjax.methods.full()
    want = kvjax.decode(lm, kvjax.compress(pre, full), full, max_new_tokens=4, stop=(), return_logits=True)
    got = kvjax.decode(lm, kvjax.compress(pre, toy(budget)), toy(budget), max_new_tokens=4, stop=(), return_logits=True)
    np.testing.assert_array_equal(got.logits, want.logits)


def test_a_prompt_shorter_than_window_or_floor_is_kept_whole(lm):
    pre = kvjax.prefill(lm, [ids_of(5), ids_of(1, 2), ids_of(20, 3)])
    cache = kvjax.compress(pre, toy(40, LayerWeights(WEIGHTS, floor=32)))
    assert (cache.lengths == np.array([5, 1, 20])[None, :, None]).all()


def test_permuting_the_heads_together_with_the_table_changes_nothing(pre):
    row, heads = pre.rows[0], jnp.asarray(HEADS[0])
    n = row.k[0].shape[2]
    valid = jnp.broadcast_to(jnp.arange(n) < 90, (1, 2, n))
    where = dict(pos=jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32), (1, 2, n)), valid=valid, length=row.length)
    q = row.evidence[0].window_queries(8)
    want = mass_of_heads(q, row.k[0], heads, **where)
    moved = jnp.asarray([1, 0, 3, 2])[heads]  # the two query heads of each KV head change places
    moved = (moved + 2) % 4  # and so do the KV heads
    got = mass_of_heads(q[:, ::-1, ::-1], row.k[0][:, ::-1], moved, **where)
    np.testing.assert_allclose(got, want, atol=1e-7)


def test_scores_by_position_where_heads_hold_different_tokens():
    pos, valid = jnp.asarray([[[0, 2, 5, 9], [2, 3, 9, 7]]], jnp.int32), jnp.asarray([[[True] * 4, [True] * 3 + [False]]])
    p = jnp.asarray([[[0.1, 0.2, 0.5, 0.9], [2.0, 3.0, 9.0, 7.0]]], jnp.float32)
    got = by_position(p, jnp.asarray([0, 1]), pos=pos, valid=valid)[0]
    np.testing.assert_allclose(got[0, :, :3], [[0.1, 0.2, 0.5], [0.2, 0, 0.9]])
    np.testing.assert_allclose(got[1, 0], [0, 2.0, 0, 9.0])
    np.testing.assert_allclose(got[1, 1, :3], [2.0, 3.0, 9.0])


@pytest.mark.parametrize("allocate", [Uniform(), Adaptive(layers=LayerWeights(WEIGHTS, floor=12))], ids=["uniform", "adaptive"])
@pytest.mark.parametrize("when", [kvjax.AfterPrefill(), kvjax.Every(1)], ids=["once", "every step"])
def test_crossing_with_other_allocators_and_schedules(lm, pre, allocate, when):
    policy = toy(allocate=allocate, when=when)
    cache = kvjax.compress(pre, policy)
    assert cache.lengths.sum() == 240
    out = kvjax.decode(lm, cache, policy, max_new_tokens=6, stop=(), return_logits=True)
    assert jnp.isfinite(out.logits).all()
    np.testing.assert_array_equal(out.cache.lengths, cache.lengths + (0 if when.decoding else 6))


BAD_HEADS = {
    "integers": np.ones((3, 2), np.float32),
    "[3 layers, heads]": np.zeros((2, 1), np.int32),
    "query heads 0 to 3": np.array([[4], [0], [0]]),
    "twice": np.array([[1, 1], [0, 1], [2, 3]]),
}


@pytest.mark.parametrize("message", BAD_HEADS)
def test_heads_that_are_not_the_models_are_refused(pre, message):
    with pytest.raises(ValueError, match=message.replace("[", r"\[")):
        kvjax.compress(pre, toy(heads=BAD_HEADS[message]))


BAD_WEIGHTS = {
    "one float a layer": (np.ones(2, np.float32), 12),
    "negative": (np.array([0.5, -0.1, 0.6], np.float32), 12),
    "at least 41, or lower the floor": (WEIGHTS, 41),
}


@pytest.mark.parametrize("message", BAD_WEIGHTS)
def test_weights_and_floors_that_do_not_fit_are_refused(pre, message):
    weights, floor = BAD_WEIGHTS[message]
    with pytest.raises(ValueError, match=message):
        kvjax.compress(pre, toy(allocate=LayerWeights(weights, floor=floor)))


def test_one_program_whatever_the_budget_and_one_policy_whatever_the_object():
    assert toy() == toy() and hash(toy()) == hash(toy())
    assert jax.tree.structure(toy(40)) == jax.tree.structure(toy(41))
    assert toy() != toy(allocate=LayerWeights(WEIGHTS, origin="another"))


def masked_run(lm, pre, retrieve):
    policy = kvjax.methods.full().replace(retrieve=retrieve)
    return kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=6, stop=(), return_logits=True)


def test_masking_no_head_changes_nothing(lm, pre):
    got, want = (masked_run(lm, pre, r) for r in (MaskHeads(np.zeros((3, 4), bool)), kvjax.methods.full().retrieve))
    np.testing.assert_array_equal(got.logits, want.logits)


@pytest.mark.parametrize("mode", [ZeroQuery(), ZeroOutput()], ids=["query", "output"])
def test_masked_heads_are_those_of_the_table_and_only_they(lm, pre, mode):
    mask = top_heads(np.arange(12.0).reshape(3, 4), 2)  # the two last heads of the last layer
    assert mask.sum() == 2 and mask[2, 2] and mask[2, 3]

    def silence(layer, out, v):
        uniform = np.broadcast_to(v.mean(axis=1)[:, None], out.shape)
        other = uniform if mode == ZeroQuery() else np.zeros_like(out)
        return np.where(mask[layer].reshape(2, 2, 1), other, out)

    out = masked_run(lm, pre, MaskHeads(mask, mode=mode))
    everything = [np.arange(90)] * 3
    want, _ = run_dense(lm, dense(pre, everything), out.tokens[0], start=90, change=silence)
    np.testing.assert_allclose(out.logits[0, 1:], want[:-1], atol=1e-5)
    plain, _ = run_dense(lm, dense(pre, everything), out.tokens[0], start=90)
    assert np.abs(want - plain).max() > 1e-3


@pytest.mark.parametrize("encode", [Stored(), Stored(positions=Unrotated())], ids=["rotated", "unrotated"])
@pytest.mark.parametrize("mode", [ZeroQuery(), ZeroOutput()], ids=["query", "output"])
def test_scorers_see_the_attention_of_masked_heads(lm, pre, mode, encode):
    """Every row of attention sums to 1: the prompt's 90 and five steps' give a KV head 95, masked query heads among them."""
    mask = np.array([[1, 0, 0, 0], [0, 1, 1, 0], [1, 1, 0, 0]], bool)
    policy = kvjax.methods.h2o(budget=1.0).replace(when=kvjax.WhenFull(64), retrieve=MaskHeads(mask, mode=mode), encode=encode)
    cache = kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=5, stop=()).cache
    score, start, length = np.asarray(cache.state.score), np.asarray(cache.start), cache.lengths
    assert (length == 95).all()
    sums = [score[at : at + n].sum() for at, n in zip(start.reshape(-1), length.reshape(-1), strict=True)]
    np.testing.assert_allclose(sums, 95, rtol=1e-5)


def test_a_mask_of_another_shape_is_refused(lm, pre):
    with pytest.raises(ValueError, match="bool mask"):
        masked_run(lm, pre, MaskHeads(np.zeros((3, 2), bool)))


def artefact_of(heads=HEADS, weights=WEIGHTS):
    """An artefact of the toy model whose best heads come first in each layer."""
    ranking = np.array([[*row, *(h for h in range(4) if h not in row)] for row in heads.tolist()], np.int32)
    tables = dict(srh=ranking, srh_score=np.zeros((3, 4), np.float32), layer_score=weights)
    return Artefact(method="compresskv", model={"name": "toy"}, data={}, settings={}, tables=tables)


def test_the_method_is_its_stages(pre):
    policy = compresskv(budget=40, artefact=artefact_of(), heads=2, floor=12)
    cache, want = kvjax.compress(pre, policy), kvjax.compress(pre, toy())
    for layer in range(3):
        for got, kept in zip(cache.kept(layer)[0], want.kept(layer)[0], strict=True):
            np.testing.assert_array_equal(got, kept)
    assert policy == compresskv(budget=40, artefact=artefact_of(), heads=2, floor=12)
    assert policy != compresskv(budget=40, artefact=artefact_of(), heads=3, floor=12)
    assert policy != compresskv(budget=40, artefact=artefact_of(weights=WEIGHTS[::-1].copy()), heads=2, floor=12)


def test_heads_are_as_many_as_layer_errors_were_measured_with():
    found = artefact_of()
    for found_with, heads in (({"heads": 1}, 1), ({"heads": 3}, 3), ({}, 4)):
        policy = compresskv(budget=40, artefact=replace(found, settings=found_with), floor=12)
        assert policy.score.heads.shape == (3, heads)
    assert compresskv(artefact="smollm2-135m").score.heads.shape == (30, 1)


def test_the_paper_s_repair_and_more_heads_than_there_are(pre):
    policy = compresskv(budget=40, artefact=artefact_of(), heads=24, floor=12, repair=ArgMax())
    assert policy.score.heads.shape == (3, 4)
    assert kvjax.compress(pre, policy).lengths.sum() == 240


REFUSED = [({"heads": 0}, "at least 1 head"), ({"floor": 8}, "raise floor above"), ({"window": 40}, "raise floor above")]


@pytest.mark.parametrize("changes, message", REFUSED)
def test_settings_that_cannot_be_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        compresskv(artefact=artefact_of(), **changes)
