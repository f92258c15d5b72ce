"""The decoder gives the numbers of transformers, and every field of its configuration matters."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import models
from models import rope

BASE = models.DecoderConfig(
    vocab=32,
    width=24,
    layers=2,
    hidden=40,
    heads=2,
    groups=2,
    head_dim=8,
    rope=rope.plain(1e4, 8),
    windows=(None, None),
)
#: One change for each field; fields that must agree change together.
CHANGES = {
    "vocab": {"vocab": 40},
    "width": {"width": 32},
    "layers": {"layers": 1, "windows": (None,)},
    "hidden": {"hidden": 48},
    "heads": {"heads": 4},
    "groups": {"groups": 4},
    "head_dim": {"head_dim": 16, "rope": rope.plain(1e4, 16)},
    "rope": {"rope": rope.plain(1e2, 8)},
    "windows": {"windows": (None, 3)},
    "eps": {"eps": 0.5},
    "qkv_bias": {"qkv_bias": True},
    "out_bias": {"out_bias": True},
    "qk_norm": {"qk_norm": True},
    "tied": {"tied": True},
    "max_positions": {"max_positions": 7},
}


def test_golden(golden, forward):
    lm, reference = models.load(golden), np.load(golden / "reference.npz")
    with jax.default_matmul_precision("highest"):
        logits, keys, values = forward(lm, reference["input_ids"])
    np.testing.assert_allclose(logits, reference["logits"], rtol=0, atol=2e-4)
    np.testing.assert_allclose(keys, reference["keys"], rtol=0, atol=1e-4)
    np.testing.assert_allclose(values, reference["values"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(models.DecoderConfig)])
def test_every_field_is_read(field, forward):
    tokens = np.arange(12)[None]
    changed = dataclasses.replace(BASE, **CHANGES[field])
    one, other = models.random(BASE), models.random(changed)
    if field == "max_positions":
        assert other.decoder.max_positions == 7 != one.decoder.max_positions
        return
    shapes = [jax.tree.map(lambda leaf: leaf.shape, lm.params) for lm in (one, other)]
    if shapes[0] == shapes[1]:
        assert np.abs(forward(one, tokens)[0] - forward(other.replace(params=one.params), tokens)[0]).max() > 1e-3


def test_window_counts_the_query_itself(forward):
    lm = models.random(dataclasses.replace(BASE, layers=1, windows=(3,)))
    tokens = np.arange(8)[None]
    other = tokens.copy()
    other[0, 2] = 20
    moved = np.abs(forward(lm, tokens)[0] - forward(lm, other)[0]).max(axis=-1)[0] > 1e-6
    assert moved.tolist() == [False, False, True, True, True, False, False, False]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_one_row_equals_many(dtype):
    w, x = (jax.random.normal(jax.random.key(i), (6, 16)).astype(dtype) for i in (0, 1))
    both = models.layers.linear(x, w)
    assert both.dtype == x.dtype
    for row in range(6):
        np.testing.assert_allclose(models.layers.linear(x[row : row + 1], w)[0], both[row], rtol=1e-2, atol=1e-2)
    assert models.layers.linear(x[0], w).shape == (6,)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_stays_near(dtype, forward):
    lm = models.random(BASE)
    half = lm.replace(params=jax.tree.map(lambda leaf: leaf.astype(dtype), lm.params))
    full, short = forward(lm, np.arange(12)[None])[0], forward(half, np.arange(12)[None])[0]
    assert short.dtype == jnp.float32
    assert np.abs(full - short).max() < 0.05 * np.abs(full).max()


def test_layer_hands_over_raw_queries_and_normed_input():
    lm, seen = models.random(BASE), []
    x = jax.random.normal(jax.random.key(1), (2, 3, 24))
    positions = jnp.zeros((2, 3), jnp.int32) + jnp.arange(3)

    def attend(heads):
        seen.append(heads)
        return heads.q, "aux"

    out, aux = lm.decoder.layer(lm.params["layers"][0], x, positions, attend)
    heads = seen[0]
    assert out.shape == x.shape and aux == "aux"
    assert heads.q.shape == heads.q_raw.shape == (2, 2, 2, 3, 8) and heads.k.shape == heads.v.shape == (2, 2, 3, 8)
    np.testing.assert_array_equal(heads.q[..., 0, :], heads.q_raw[..., 0, :])
    np.testing.assert_allclose(np.square(heads.x).mean(-1), 1, rtol=1e-3)
    with pytest.raises(ValueError, match="attend must return"):
        lm.decoder.layer(lm.params["layers"][0], x, positions, lambda heads: (heads.k, None))


def test_an_id_outside_the_vocabulary_is_loud():
    lm = models.random(BASE)
    assert np.isnan(lm.decoder.embed(lm.params, jnp.array([[32]]))).all()


def test_decoder_is_a_static_argument():
    assert models.Decoder(BASE) == models.Decoder(dataclasses.replace(BASE))
    assert hash(models.Decoder(BASE)) == hash(models.Decoder(dataclasses.replace(BASE)))
    assert not jax.tree.leaves(models.random(BASE).replace(params={}))
