"""MagicPIG against its NumPy transcription: hashes, chances, steps; what the samples stand for; bytes and what crosses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.placement import sampled_attention as placement
from kvjax.placement.host_attention import _HOST
from kvjax.placement.sampled_attention import SampledPart, chance, sampled_attention
from kvjax.retrieve.sampled_tokens import hashes, planes
from tests.conftest import ids_of
from tests.methods import reading
from tests.reference import magicpig as slow
from tests.reference.softmax import softmax

SINKS, LOCAL, BITS, TABLES = 4, 12, 4, 20


def policy(**changed):
    return kvjax.methods.magicpig(**{"sinks": SINKS, "local": LOCAL, "bits": BITS, "tables": TABLES, "dense": (0,), **changed})


def test_chances_by_hand():
    """At right angles p = 1/2, a hash of 2 bits meets by 1/4, both of 2 tables by 1/16; the same direction always does."""
    u = chance(jnp.array([0.0, 1.0, -1.0]), bits=2, tables=2)
    np.testing.assert_allclose(u, [1 / 16, 1, 0], atol=1e-6)
    three = chance(jnp.array([0.0]), bits=1, tables=3)
    np.testing.assert_allclose(three, [0.5], atol=1e-6)  # two or three heads of three coins


def test_hashes_by_hand():
    """Signs against x, y and x + y: bits 1, 2 and 4."""
    normals = np.array([[[1, 0], [0, 1], [1, 1]]], np.float32)
    got = hashes(jnp.array([[1.0, -2], [2, -1], [-1, 3], [0, 0]]), normals)
    np.testing.assert_array_equal(got[:, 0], [1, 5, 6, 0])
    np.testing.assert_array_equal(got, slow.hashes(np.array([[1.0, -2], [2, -1], [-1, 3], [0, 0]]), normals))


def test_tokens_meet_as_often_as_their_chance_says():
    """Over 400 draws of the planes, within four standard errors."""
    draw, n = np.random.default_rng(0), 8
    q, k = draw.normal(size=16), draw.normal(size=(n, 16))
    k += np.linspace(-1, 3, n)[:, None] * q
    often = np.mean([slow.met(q, k, planes(seed, 3, 8, 16)) for seed in range(400)], 0)
    u = np.asarray(chance(jnp.asarray(k @ q / np.linalg.norm(k, axis=1) / np.linalg.norm(q), jnp.float32), bits=3, tables=8))
    np.testing.assert_allclose(u, slow.chance(q, k, 3, 8), atol=1e-5)
    assert (np.abs(often - u) <= 4 * np.sqrt(u * (1 - u) / 400) + 1e-6).all() and np.ptp(u) > 0.5


def test_samples_stand_for_all_tokens():
    """The mean estimate over draws of the planes comes closer to exact attention than that of what met, not weighted."""
    draw, n, d = np.random.default_rng(3), 200, 16
    q, k, v = draw.normal(size=d), draw.normal(size=(n, d)), draw.normal(size=(n, d))
    every = np.ones(n, bool)
    exact = softmax((k - k.mean(0)) @ q / 4) @ v
    weighted, bare = [], []
    for seed in range(60):
        normals = planes(seed, 3, 10, d)
        weighted.append(slow.attention(q, k, v, every, normals)[0])
        here = slow.met(q, k - k.mean(0), normals)
        bare.append(softmax(k[here] @ q / 4) @ v[here])
    off, off_bare = (np.linalg.norm(np.mean(x, 0) - exact) for x in (weighted, bare))
    assert off < 0.5 * off_bare


@pytest.mark.parametrize(("bits", "tables", "seed"), [(4, 20, 0), (2, 6, 5), (8, 150, 0)])
def test_steps_are_the_transcriptions(lm, pre, bits, tables, seed):
    n, counts = pre.lengths[0], []
    normals = planes(seed, bits, tables, 16).astype(float)

    def rule(layer, inputs, k, v):
        q, at = np.asarray(inputs.q, np.float64)[0, :, :, 0], np.arange(k.shape[1])
        if layer == 0:
            return reading.over_lists(q, k, v, lambda h, g: at)
        between = (at >= SINKS) & (at < n - LOCAL)
        found = [[slow.attention(q[h, g], k[h], v[h], between, normals) for g in range(2)] for h in range(2)]
        counts.append(sum(count for row in found for _, count in row))
        return np.array([[out for out, _ in row] for row in found])

    out = reading.same_as_written_out(lm, pre, policy(bits=bits, tables=tables, seed=seed), rule)
    assert len(set(counts)) > 3 and 0 < sum(counts)
    np.testing.assert_array_equal(out.cache.retrieval.sampled.total, [sum(counts)])


def test_a_prompt_without_a_token_between_is_the_full_cache(lm):
    for n in (1, 4, 16):
        reading.reads_everything(lm, kvjax.prefill(lm, ids_of(n)), policy())


def test_rows_are_what_they_are_alone(lm):
    """One of them has hardly a token between sinks and last ones."""
    reading.rows_are_solo(lm, policy(), lengths=(90, 14, 130), counter="sampled")


def test_bytes_are_where_they_are_said_to_be(lm, pre):
    """Keys, values and a hash of two bytes for each table are on the host; the first layer, sinks and last tokens on the device."""
    cache = kvjax.compress(pre, policy())
    size, heads = 128, 2  # 74 tokens between, in blocks of 64
    part = cache.retrieval.parts[1]
    assert {x.sharding.memory_kind for x in part} == {"pinned_host"}
    assert cache.host_nbytes == 2 * heads * size * (2 * 16 * 4 + 1 + 2 * TABLES)
    np.testing.assert_array_equal(cache.lengths[:, 0], [[90] * 2, [SINKS + LOCAL] * 2, [SINKS + LOCAL] * 2])
    assert cache.retrieval.parts[0] == ()


def test_queries_and_hashes_go_and_outputs_come_back(monkeypatch):
    """As lowered for a device with a memory of its own: keys, values and their hashes stay where they are."""
    monkeypatch.setattr(placement, "compiles_for", lambda: "cuda")
    q, codes = jnp.zeros((3, 2, 2, 1, 16)), jnp.zeros((3, 2, 2, 1, TABLES), jnp.uint16)
    k = jnp.zeros((3, 2, 128, 16))
    part = SampledPart(*jax.device_put((k, k, jnp.ones((3, 2, 128), bool), jnp.zeros((3, 2, 128, TABLES), jnp.uint16)), _HOST))
    trace = jax.jit(lambda *x: sampled_attention(*x, bits=BITS)).trace(part, q, codes)
    moved = [x.aval for eqn in trace.jaxpr.eqns if eqn.primitive.name == "device_put" for x in eqn.outvars]
    want = q.nbytes + codes.nbytes + q.size * 4 + 12 * 4 + 3 * 4  # and outputs, log denominators, counts
    assert sum(x.size * x.dtype.itemsize for x in moved) == want
    assert '_xla_compute_type = "host"' in trace.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"bits": 17}, "1 to 16 bits"), ({"bits": 0}, "1 to 16 bits"), ({"tables": 1}, "2 tables"), ({"sinks": -1}, "sinks"),
     ({"dense": (0, 1, 2)}, "leave one to sample in")],
)  # fmt: skip
def test_sizes_out_of_range_are_refused(pre, changes, message):
    with pytest.raises(ValueError, match=message):
        kvjax.compress(pre, policy(**changes))


def test_other_hashes_and_a_budget_that_evicts_are_refused(lm, pre):
    with pytest.raises(ValueError, match="whole prompt"):
        kvjax.compress(pre, policy().replace(budget=0.5))
    cache = kvjax.compress(pre, policy())
    with pytest.raises(ValueError, match="compress it with this policy"):
        kvjax.decode(lm, cache, policy(seed=1), max_new_tokens=1)
    with pytest.raises(ValueError, match="one policy"):
        kvjax.stack([cache, kvjax.compress(pre, policy(seed=1))])
