"""KVMerger against its reference, the worked example, what it reduces to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.merge import GaussianRuns
from kvjax.merge.gaussian import gaussian_weights, merged_runs
from kvjax.score.neighbours import neighbour_cosines
from kvjax.select import Runs
from kvjax.view import LayerView, Ranking
from tests.conftest import ids_of
from tests.methods.growing import Growing
from tests.methods.inputs import layers_of
from tests.methods.simulate import agree
from tests.reference import kvmerger
from tests.reference.test_examples_kvmerger import ATTENTION, KEYS


def of_kvjax(k, v, scores, *, budget, heavy, recent, room=0):
    """(keep, keys, values of the kept slots) of one head [n, d]; `room`: slots behind it that hold nothing."""
    k, v, scores = (jnp.pad(jnp.asarray(x, jnp.float32), ((0, room), (0, 0))[: np.ndim(x)])[None, None] for x in (k, v, scores))
    view = LayerView.of_prompt(jnp.array([k.shape[2] - room]), k.shape[:3], k=k, v=v)
    select, b = Runs(heavy_share=heavy, recent_share=recent), jnp.full((1, 1), budget)
    ranking = Ranking(scores[None], select.protected(view, b)[None], view.valid[None], view.pos[None], neighbour_cosines(k)[None])
    keep = jax.jit(select)(ranking, b[None])[0]
    merged, _ = jax.jit(GaussianRuns(heavy_share=heavy, recent_share=recent))(view, keep, scores, ())
    at = np.flatnonzero(keep[0, 0])
    return at, np.asarray(merged.k[0, 0])[at], np.asarray(merged.v[0, 0])[at]


def test_e21():
    k, scores = KEYS.astype(np.float32), ATTENTION
    parts = [of_kvjax(k, v, scores, budget=2, heavy=0.0, recent=0.0) for v in np.split(np.eye(6), 3, axis=1)]
    at, keys, _ = parts[0]
    values = np.concatenate([v for *_, v in parts], 1)
    assert at.tolist() == [1, 3]
    np.testing.assert_allclose(keys, [[0.99484, 0.09017], [0.47983, 0.87700]], atol=1e-5)
    np.testing.assert_allclose(values[0, :3], [0.4969, 1.4969, 1.0062], atol=6e-5)
    np.testing.assert_allclose(values[1, 3:], [1.4692, 1.0883, 0.4425], atol=6e-5)
    w = gaussian_weights(jnp.asarray(k)[None, None], jnp.array([[[1, 1, 1, 3, 3, 3]]]), jnp.ones((1, 1, 6), bool))[0, 0]
    np.testing.assert_allclose(w, [0.1656, 0.4990, 0.3354, 0.4897, 0.3628, 0.1475], atol=6e-5)


@pytest.mark.parametrize("n, budget, heavy, recent, room", [(40, 12, 0.25, 0.25, 0), (40, 12, 0.25, 0.25, 9), (40, 39, 0.1, 0.5, 3),
    (23, 1, 0.25, 0.25, 1), (23, 7, 0.0, 0.9, 0), (9, 4, 0.45, 0.0, 2)])  # fmt: skip
def test_against_the_reference_on_random_numbers(n, budget, heavy, recent, room):
    rng = np.random.default_rng(n + budget)
    k, v = rng.normal(size=(2, n, 3)).astype(np.float32)
    scores = rng.integers(0, 9, n).astype(np.float32)
    k[5] = k[4]
    single = kvmerger.singletons(scores, int(budget * heavy), int(budget * recent))
    runs = kvmerger.runs_of_count(kvmerger.neighbour_cosines(k), budget, single)
    keys, values, positions = kvmerger.merged(k, v, scores, runs)
    at, mine, theirs = of_kvjax(k, v, scores, budget=budget, heavy=heavy, recent=recent, room=room)
    np.testing.assert_array_equal(at, positions)
    np.testing.assert_allclose(mine, keys, atol=1e-5)
    np.testing.assert_allclose(theirs, values, atol=1e-5)


def test_as_many_runs_as_tokens_is_the_identity():
    v = np.arange(12.0).reshape(6, 2)
    at, keys, values = of_kvjax(KEYS, v, ATTENTION, budget=6, heavy=0.0, recent=0.0)
    np.testing.assert_array_equal(at, np.arange(6))
    np.testing.assert_array_equal(keys, KEYS.astype(np.float32))
    np.testing.assert_array_equal(values, v)


def test_equal_keys_weigh_alike():
    v = np.arange(12.0).reshape(6, 2)
    _, keys, values = of_kvjax(np.ones((6, 2)), v, ATTENTION, budget=1, heavy=0.0, recent=0.0)
    np.testing.assert_allclose(keys, [[1, 1]], rtol=1e-6)
    np.testing.assert_allclose(values, [[30, 36]], rtol=1e-6)


def test_a_run_of_one_keeps_its_bits_in_bfloat16():
    x = jax.random.normal(jax.random.key(0), (1, 1, 5, 4), jnp.bfloat16)
    k, v = merged_runs(x, x, jnp.array([[[0, 0, 2, 3, 3]]]), jnp.ones((1, 1, 5), bool))
    assert k.dtype == jnp.bfloat16
    np.testing.assert_array_equal(k[0, 0, 2], x[0, 0, 2])
    np.testing.assert_array_equal(v[0, 0, 2], x[0, 0, 2])


def heads_of(layer, budget, heavy, recent):
    runs = []
    for k, v, rows in zip(layer.k, layer.v, layer.rows(), strict=True):
        scores = rows.sum((0, 1))
        single = kvmerger.singletons(scores, int(budget * heavy), int(budget * recent))
        runs.append(kvmerger.merged(k, v, scores, kvmerger.runs_of_count(kvmerger.neighbour_cosines(k), budget, single)))
    return runs


def test_prompt_and_64_tokens(lm):
    ids, budget = ids_of(60, 5), 24
    runs = [heads_of(x, budget, 0.25, 0.2) for x in layers_of(lm, ids)]
    policy = kvjax.methods.kvmerger(budget=budget, heavy_share=0.25, recent_share=0.2)
    cache = agree(lm, ids, policy, [Growing([h[0] for h in x], [h[1] for h in x]) for x in runs])
    for i, layer in enumerate(runs):
        for h, (_, _, positions) in enumerate(layer):
            np.testing.assert_array_equal(cache.kept(i)[0][h][:budget], positions)


def test_what_is_refused(lm, pre):
    with pytest.raises(ValueError, match="must be below 1; got 0.5 and 0.2"):
        kvjax.compress(pre, kvjax.methods.kvmerger(budget=30, heavy_share=0.5, recent_share=0.2))
    with pytest.raises(ValueError, match="Runs reads a second ranking, which AccumulatedAttention does not give"):
        kvjax.compress(pre, kvjax.methods.kvmerger(budget=30).replace(score=kvjax.score.AccumulatedAttention()))
