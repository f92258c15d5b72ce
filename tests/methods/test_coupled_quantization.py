"""Coupled quantization: worked examples, its codes and bits, weighted clusters, and the artefact that comes with the library."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.artefacts.artefact import built_in, resolve
from kvjax.calibrate.coupled import coupled_codebooks, fit_head
from kvjax.calibrate.gradients import CacheGradients
from kvjax.calibrate.weighted_means import weighted_means
from kvjax.codec import Coupled
from kvjax.codec.bit_stream import unpack_bits
from tests.artefacts import toy

TABLE = np.array([[-1, -2], [-1, 2], [1, -2], [1, 2]], np.float32)


def test_q6_distances_and_codes():
    x = np.array([[0.8, -1.5], [-0.2, 0.1], [-0.9, 2.4], [0.8, -1.5]], np.float32)
    distances = ((x[:, None] - TABLE) ** 2).sum(-1)
    want = [[3.49, 15.49, 0.29, 12.29], [5.05, 4.25, 5.85, 5.05], [19.37, 0.17, 22.97, 3.77]]
    np.testing.assert_allclose(distances[:3], want, rtol=1e-5)
    codec = Coupled(codebook=np.broadcast_to(TABLE, (1, 4, 4, 2)))
    rows = codec.encode(jnp.asarray(x.reshape(1, 1, 1, 8)))
    np.testing.assert_array_equal(unpack_bits(rows, 4, 2)[0, 0, 0], [2, 1, 1, 2])
    np.testing.assert_array_equal(codec.decode(rows, jnp.float32)[0, 0, 0], TABLE[[2, 1, 1, 2]].ravel())
    assert rows.nbytes == 1


def test_q6_a_fisher_step():
    points, gradient = np.array([[1.0, 0], [3, 2]], np.float32), np.array([[1.0, 1], [0, 1]], np.float32)
    weight = (gradient**2).sum(1)
    np.testing.assert_array_equal(weight, [2, 1])
    points, weight = np.repeat(points, 2, 0) + np.float32([[0, 0], [1e-4, 0]] * 2), np.repeat(weight, 2)
    found = weighted_means(points, weight, 1, seed=0, max_iter=10)
    np.testing.assert_allclose(found, [[1.666667, 0.666667]], atol=1e-4)
    np.testing.assert_allclose(weighted_means(points, np.ones(4), 1, seed=0, max_iter=10), [[2, 1]], atol=1e-4)


def test_q6_size_of_the_tables():
    """LLaMA-7B at eight bits: 67.1 million entries, 128 MiB in 16 bits, whatever c is."""
    for c in (2, 4, 8):
        entries = 32 * 2 * 32 * (128 // c) * 256 * c
        assert entries == 67_108_864 and 2 * entries == 128 << 20


@pytest.mark.parametrize("c, b, want", [(4, 8, 2), (8, 8, 1), (2, 8, 4), (4, 7, 1.75)])
def test_bits(c, b, want):
    codec = Coupled(codebook=np.zeros((1, 1, 64 // c, 1 << b, c), np.float16))
    assert codec.bits_a_number(64) == want
    rows = codec.at(0).encode(jnp.ones((1, 1, 5, 64)))
    assert 8 * rows.addressable_shards[0].data.nbytes == want * 5 * 64


def test_ties_and_what_is_a_centroid():
    codec = Coupled(codebook=np.broadcast_to(TABLE, (1, 4, 4, 2)))
    np.testing.assert_array_equal(unpack_bits(codec.encode(jnp.zeros((1, 1, 1, 8))), 4, 2), 0)
    x = jnp.asarray(TABLE.reshape(1, 1, 1, 8))
    np.testing.assert_array_equal(codec.decode(codec.encode(x), jnp.float32), x)


def test_weights_that_say_nothing():
    points = np.random.default_rng(0).standard_normal((60, 2)).astype(np.float32)
    even = weighted_means(points, np.ones(60), 4, seed=0, max_iter=20)
    for weight in (np.zeros(60), np.full(60, np.nan)):
        np.testing.assert_allclose(weighted_means(points, weight, 4, seed=0, max_iter=20), even)
    few = weighted_means(np.repeat(np.eye(2, dtype=np.float32), 9, 0), np.ones(18), 4, seed=0, max_iter=20)
    assert few.shape == (4, 2) and np.isfinite(few).all()


def test_codebooks_serve_what_the_loss_feels():
    """With gradients on one half of the points, that half is coded better than without."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 4)).astype(np.float32)
    x[200:] += 8
    gradient = np.where(np.arange(400)[:, None] < 200, 1.0, 1e-4) * np.ones((400, 4))
    lost = []
    for fisher in (False, True):
        book = fit_head(x, gradient, channels=2, bits=3, fisher=fisher, seed=0, max_iter=50).astype(np.float32)
        parts = x[:200].reshape(200, 2, 2).swapaxes(0, 1)
        lost.append(sum(((a[:, None] - c) ** 2).sum(-1).min(1).sum() for a, c in zip(parts, book, strict=True)))
    assert lost[1] < 0.8 * lost[0]


def test_calibrated_codebooks():
    rng, seen = np.random.default_rng(1), []
    found = CacheGradients(*(rng.standard_normal((2, 2, 90, 8)).astype(np.float32) for _ in range(4)))
    tables = coupled_codebooks(found, channels=4, bits=4, max_iter=5, progress=lambda *x: seen.append(x))
    assert tables["keys"].shape == tables["values"].shape == (2, 2, 2, 16, 4) and seen[-1] == (8, 8)
    alone = fit_head(found.v[1, 0], found.dv[1, 0], channels=4, bits=4, fisher=True, seed=0, max_iter=5)
    np.testing.assert_array_equal(tables["values"][1, 0], alone)


def test_the_built_in_artefact():
    assert "smollm2-135m/coupled_quantization" in built_in()
    found = resolve("smollm2-135m", "coupled_quantization")
    assert found.data["split"] == "calibration" and found.tables["keys"].dtype == np.float16
    encode = kvjax.methods.coupled_quantization().encode
    assert encode.keys.bits_a_number(64) == encode.values.bits_a_number(64) == 1.5
    assert encode.keys != encode.values and encode == kvjax.methods.coupled_quantization("smollm2-135m").encode


def test_a_codebook_of_the_cached_keys_themselves_is_lossless(lm):
    """As many centroids as tokens: attention is exact."""
    policy = kvjax.methods.coupled_quantization(artefact=toy("coupled_quantization"))
    pre = kvjax.prefill(lm, list(range(64)), needs=policy)
    raw = [np.asarray(e.of(kvjax.evidence.RawKeys()))[0] for e in pre.rows[0].evidence]
    book = lambda rows: np.stack([x[:, :64].reshape(2, 64, 4, 4).swapaxes(1, 2) for x in rows])  # noqa: E731
    keys = Coupled(codebook=book(raw), origin="keys")
    values = Coupled(codebook=book([np.asarray(v)[0] for v in pre.rows[0].v]), origin="values")
    cache = kvjax.compress(pre, policy.replace(encode=policy.encode.replace(keys=keys, values=values)))
    rows = cache.k[int(cache.start[1, 0, 1]) :][:64][None, None]
    np.testing.assert_allclose(keys.at(1).decode(jnp.repeat(rows, 2, 1), jnp.float32)[0, 1], raw[1][1, :64], atol=1e-6)
    assert jax.tree.leaves(cache.k)[0].dtype == jnp.uint8


WRONG = {
    "another model": ((3, 2, 2, 16, 4), "of 8 channels"),
    "codes that do not fill bytes": ((3, 2, 4, 32, 4), "do not fill bytes"),
}


@pytest.mark.parametrize("name", WRONG)
def test_refusals(pre, name):
    shape, why = WRONG[name]
    with pytest.raises(ValueError, match=why):
        kvjax.compress(pre, kvjax.Policy(encode=kvjax.encode.Stored(values=Coupled(codebook=np.zeros(shape, np.float16)))))
