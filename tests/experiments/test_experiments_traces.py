"""Traces of real caches of the toy models: lengths, where slots lie, drift; their file resumes."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from experiments import traces
from experiments.measure import measure
from experiments.policies import Named
from experiments.row_checks import trace
from experiments.rows import RowFile, key
from experiments.tasks import ppl
from experiments.tasks.example import Example
from tests.artefacts import toy
from tests.conftest import ids_of
from tests.experiments.conftest import lines, row


def test_lengths_and_retention_are_those_of_the_cache(pre):
    cache = kvjax.compress(pre, kvjax.methods.streaming_llm(budget=45))
    found = traces.of_cache(cache, 90)
    assert found["tokens"] == 90 and found["lengths"] == [[45, 45]] * 3
    retention = np.array(found["retention"])
    assert retention.shape == (3, 64)
    edges = [j * 90 // 64 for j in range(65)]
    held = set(cache.kept(1)[0][0].tolist())  # the same tokens in every head
    want = [np.mean([token in held for token in range(a, b)]) for a, b in zip(edges, edges[1:], strict=False)]
    np.testing.assert_allclose(retention[1], want, atol=1e-3)
    assert retention[0, 0] == 1.0 and retention[0, 20] == 0.0 and retention[0, -1] == 1.0


def test_retention_weighs_to_the_slots_kept(pre):
    found = traces.of_cache(kvjax.compress(pre, kvjax.methods.adakv(budget=40, window=8)), 90)
    sizes = np.diff([j * 90 // 64 for j in range(65)])
    kept = (np.array(found["retention"]) * sizes).sum(1) * 2
    np.testing.assert_allclose(kept, np.sum(found["lengths"], axis=1), atol=0.2)
    assert len({tuple(layer) for layer in found["lengths"]}) > 1


def test_a_prompt_shorter_than_the_stretches_has_one_for_each_token():
    mask = np.random.default_rng(0).random((3, 2, 20)) < 0.5
    np.testing.assert_array_equal(traces.retention(mask), mask.mean(1))


@pytest.fixture(scope="module")
def fetching():
    """HeteroCache that fetches after every window and remembers the last four."""
    policy = kvjax.methods.heterocache(budget=0.6, artefact=toy("heterocache"), theta=1.5)
    return policy.replace(retrieve=policy.retrieve.replace(traced=4))


@pytest.mark.slow
def test_drift_is_what_the_retriever_saw(lm, pre, fetching):
    policy = fetching
    cache = kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=21, stop=()).cache
    drift, state = traces.of_retrieval(cache, policy)["drift"], cache.retrieval
    assert (drift["theta"], drift["w"], drift["first"]) == (1.5, 5, 0) and drift["pivots"] == [[0, 0], [2, 1]]
    np.testing.assert_allclose(np.array(drift["medians"]), state.trace[0, :, :4], atol=1e-4)
    assert drift["refreshes"] == [4, 4] and json.dumps(drift, allow_nan=False)


@pytest.mark.slow
def test_a_sweep_traces_drift_beside_the_row(lm, prompt, fetching):
    example = Example(task="ppl", mode="-", length=90, index=0, context=tuple(prompt), answer=tuple(ids_of(22, seed=5)))
    ((row, trace),) = measure(lm, ppl, [example], [Named("heterocache", 45, fetching)], needs=[fetching], trace=True)
    assert len(trace["drift"]["medians"]) == 2 and len(trace["lengths"]) == 3 and "drift" not in row


def test_a_ring_that_went_round_is_unrolled(pre, fetching):
    cache, policy = kvjax.compress(pre, fetching), fetching
    assert traces.of_retrieval(cache, policy)["drift"]["medians"] == [[], []]  # nothing read yet
    ring = jnp.array([[[0.4, np.nan, 0.2, 0.3], [0.0, 0.1, 0.8, 0.9]]], jnp.float32)  # windows 4, 5, 2, 3
    cache = cache.replace(retrieval=cache.retrieval.replace(trace=ring, windows=jnp.array([6], jnp.int32)))
    drift = traces.of_retrieval(cache, policy)["drift"]
    assert drift["first"] == 2 and drift["medians"] == [[0.2, 0.3, 0.4, None], [0.8, 0.9, 0.0, 0.1]]


def test_methods_without_pivots_have_no_drift(pre):
    policy = kvjax.methods.streaming_llm(budget=45)
    assert traces.of_retrieval(kvjax.compress(pre, policy), policy) == {}


def test_the_file_keeps_each_trace_once_and_names_its_cell(tmp_path):
    path = traces.beside(tmp_path / "F.jsonl")
    assert path == tmp_path / "F.traces.jsonl"
    made = row(depth=0.3)
    for _ in range(2):
        with RowFile(path, made, trace) as file:
            traces.keep(file, made, {"tokens": 3, "lengths": [[3, 1]], "retention": [[1.0, 0.5, 0.5]]})
            traces.keep(file, made, None)
    (found,) = lines(path)
    assert key(found) == key(made) and found["policy"] == "snapkv" and found["depth"] == 0.3 and found["tokens"] == 3
    assert "score" not in found


@pytest.mark.parametrize("device", ["/dev/full", "/dev/null"])
def test_a_device_has_no_file_beside_it(device):
    assert str(traces.beside(device)) == "/dev/null"
