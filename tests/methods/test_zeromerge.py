"""ZeroMerge against its reference, the worked example, the authors' numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.evidence.fading_sum import FadingSum
from kvjax.merge import IntoDense, LargestDot, SmallestDistance
from kvjax.merge.dense import into
from kvjax.select import DenseAndTop
from kvjax.select.dense import run_starts
from kvjax.view import LayerView, Ranking
from tests.conftest import ids_of
from tests.methods.inputs import layers_of
from tests.methods.simulate import agree
from tests.reference import zeromerge
from tests.reference.attention import attention_rows
from tests.reference.golden_methods import load
from tests.reference.test_examples_zeromerge import SCORE
from tests.replayed import ReplayedModel


def started(k, v, scores, *, budget, dense, tail_share=0.1):
    """(keep [h, n], merged view) of a prompt [h, n, d]."""
    k, v, scores = (jnp.asarray(x, jnp.float32)[None] for x in (k, v, scores))
    view = LayerView.of_prompt(jnp.array([k.shape[2]]), k.shape[:3], k=k, v=v).replace(bias=jnp.zeros(k.shape[:3]))
    select, b = DenseAndTop(dense=dense, tail_share=tail_share), jnp.full((1, k.shape[1]), budget)
    ranking = Ranking(scores[None], select.protected(view, b)[None], view.valid[None], view.pos[None])
    keep = jax.jit(select)(ranking, b[None])[0]
    merged, _ = jax.jit(IntoDense(dense=dense, tail_share=tail_share))(view, keep, scores, ())
    return np.asarray(keep[0]), merged


def test_a19a_start_and_one_more():
    v = np.arange(8.0)[None, :, None]
    keep, view = started(v + 1, v, SCORE[None], budget=5, dense=1)
    assert np.flatnonzero(keep[0]).tolist() == [0, 1, 4, 6, 7]
    np.testing.assert_allclose([view.v[0, 0, 1, 0], np.exp(view.bias[0, 0, 1])], [2.75, 4], rtol=1e-6)
    target = jnp.where(jnp.arange(8) == 4, 1, -1)[None, None]
    more = into(view, jnp.arange(8)[None, None] == 4, target.astype(jnp.int32))
    np.testing.assert_allclose([more.v[0, 0, 1, 0], np.exp(more.bias[0, 0, 1])], [3.0, 5], rtol=1e-6)


def test_a_text_that_fitted_has_its_first_slots_dense():
    """The reference's example: the weakest of tokens 1 to 3 joins token 0; with two dense slots it joins the nearer."""
    x, scores = jnp.arange(6.0)[None, None, :, None], jnp.asarray([[[9.0, 0.4, 0.3, 0.35, 0.2, 0.1]]])
    view = LayerView.of_prompt(jnp.array([6]), (1, 1, 6), k=x, v=x).replace(bias=jnp.zeros((1, 1, 6)), since=jnp.array([5]))
    for dense, values, held in ((1, [1, 1, 0, 3, 4, 5], [2, 1, 0, 1, 1, 1]), (2, [0, 1.5, 0, 3, 4, 5], [1, 2, 0, 1, 1, 1])):
        select, b = DenseAndTop(dense=dense), jnp.full((1, 1), 5)
        ranking = Ranking(scores[None], select.protected(view, b)[None], view.valid[None], view.pos[None])
        keep = jax.jit(select)(ranking, b[None])[0]
        assert np.flatnonzero(keep[0, 0]).tolist() == [0, 1, 3, 4, 5]
        merged, _ = jax.jit(IntoDense(dense=dense))(view, keep, scores, ())
        np.testing.assert_allclose(np.where(keep, merged.v[..., 0], 0)[0, 0], values)
        np.testing.assert_allclose(np.where(keep, np.exp(merged.bias), 0)[0, 0], held, rtol=1e-5)
        assert np.flatnonzero(merged.bias[0, 0]).tolist() == list(range(dense))


@pytest.mark.parametrize("count, runs", [(7, 3), (9, 3), (5, 5), (4, 9), (1, 1), (11, 1)])
def test_runs(count, runs):
    starts = np.flatnonzero(run_starts(jnp.ones(count, bool), runs))
    want = [length for length in zeromerge.runs(count, runs) if length]
    assert np.diff([*starts, count]).tolist() == want


@pytest.mark.parametrize("case", ["c0", "c1"])
def test_the_authors_start(case):
    """Prompt scores of their queries and keys, and what their cache begins with."""
    data = load("zeromerge")
    n, shrink, budget = int(data["n_prompt"]), float(data[f"{case}_shrink"]), int(data["cache_budget"])
    dense, share = int(data["cache_dense"]), float(data["cache_tail"] / data["cache_budget"])
    q, k, v = (data[f"{case}_{name}"][0, :, :n] for name in ("query", "key", "value"))
    rows = jnp.asarray(attention_rows(q[:, None], k), jnp.float32)[None]
    fading, at = FadingSum(shrink), jnp.arange(n, dtype=jnp.int32)[None]
    parts = [fading.of_rows(rows[:, :, :, i : i + 30], at[:, i : i + 30], rows[:, :, :, i : i + 30] > 0) for i in (0, 30, 60)]
    scores = fading.join(fading.join(parts[0], parts[1]), parts[2]).total[0, :, 0]
    np.testing.assert_allclose(scores, data[f"{case}_prompt_score"][0], atol=1e-5)
    keep, view = started(k, v, scores, budget=budget, dense=dense, tail_share=share)
    for h in range(4):
        order = np.argsort(np.asarray(view.bias[0, h])[keep[h]] == 0, kind="stable")[:dense]
        mine, theirs = np.asarray(view.k[0, h])[keep[h]], data[f"{case}_init_key"][0, h]
        np.testing.assert_allclose(mine[order], theirs[:dense], atol=1e-5)
        held = np.exp(np.asarray(view.bias[0, h])[keep[h]][order])
        np.testing.assert_allclose(held, data[f"{case}_init_weight"][0, h, :dense], atol=1e-4)
        single = np.delete(mine, order, 0)
        assert {x.tobytes() for x in single} == {x.tobytes() for x in theirs[dense:].astype(np.float32)}


@pytest.mark.parametrize("case, nearest", [("c0", LargestDot()), ("c1", SmallestDistance())])
def test_the_authors_run_of_20_steps(case, nearest):
    """Their queries, keys and values through prefill, compress and extend: outputs of every step, and what is held in the end."""
    data = load("zeromerge")
    n, budget, dense = int(data["n_prompt"]), int(data["cache_budget"]), int(data["cache_dense"])
    lm = ReplayedModel.of(*(data[f"{case}_{name}"][0] for name in ("query", "key", "value")))
    policy = kvjax.methods.zeromerge(
        budget=budget,
        dense=dense,
        tail_share=float(data["cache_tail"] / budget),
        shrink=float(data[f"{case}_shrink"]),
        nearest=nearest,
    )
    cache = kvjax.compress(kvjax.prefill(lm, [1] * n, needs=policy), policy)
    fed = kvjax.extend(lm, cache, [1] * 20, policy, block=1, return_logits=True)
    theirs = data[f"{case}_attn_out_per_step"][:, 0, :, 0].reshape(20, -1)
    np.testing.assert_allclose(fed.logits[0], theirs, atol=2e-5)
    for h in range(4):
        slots = slice(start := int(fed.cache.start[0, 0, h]), start + budget)
        k, v, bias = (np.asarray(x[slots]) for x in (fed.cache.k, fed.cache.v, fed.cache.bias))
        mine, wanted = (np.lexsort(np.round(x, 3).T) for x in (k, data[f"{case}_final_key"][0, h]))
        np.testing.assert_allclose(k[mine], data[f"{case}_final_key"][0, h][wanted], atol=2e-5)
        np.testing.assert_allclose(v[mine], data[f"{case}_final_value"][0, h][wanted], atol=2e-5)
        np.testing.assert_allclose(np.exp(bias[mine]), data[f"{case}_final_weight"][0, h][wanted], atol=1e-4)


class Heads:
    def __init__(self, layer, split, nearest):
        scores = [zeromerge.prompt_scores(rows, 0.98) for rows in layer.rows()]
        parts = zip(layer.k, layer.v, scores, strict=True)
        self.heads = [zeromerge.Head(k, v, s, *split, nearest=nearest) for k, v, s in parts]

    def step(self, q, k, v, at):
        return np.stack([head.step(*x) for head, *x in zip(self.heads, q, k, v, strict=True)])


@pytest.mark.parametrize(
    "n, dense, nearest, reference",
    [
        (60, 1, LargestDot(), zeromerge.largest_dot),
        (60, 4, SmallestDistance(), zeromerge.smallest_distance),
        (24, 3, SmallestDistance(), zeromerge.smallest_distance),
    ],
)
def test_prompt_and_64_tokens(lm, n, dense, nearest, reference):
    ids = ids_of(n, 5)
    held = [Heads(x, zeromerge.split(30, dense=dense), reference) for x in layers_of(lm, ids)]
    cache = agree(lm, ids, kvjax.methods.zeromerge(budget=30, dense=dense, nearest=nearest), held)
    for i, layer in enumerate(held):
        for h, head in enumerate(layer.heads):
            start = int(cache.start[i, 0, h])
            pos, k, v, bias = (np.asarray(x[start : start + 30]) for x in (cache.pos, cache.k, cache.v, cache.bias))
            order, single = np.argsort(pos), bias == 0
            assert sorted(pos[single].tolist()) == sorted(j for j in head.pos if j >= 0)
            mine = order[~single[order]]
            np.testing.assert_allclose(np.exp(bias[mine]), head.c[:dense], rtol=1e-4)
            np.testing.assert_allclose(k[mine], head.k[:dense], atol=3e-4)
            np.testing.assert_allclose(v[mine], head.v[:dense], atol=3e-4)
