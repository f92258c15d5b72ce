"""KVQuant: the authors' numbers, worked examples, calibration, its cap on outliers, and where keys stand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.artefacts.artefact import built_in, resolve
from kvjax.calibrate.gradients import _loss, gradients_of
from kvjax.calibrate.kvquant import fit_levels, kvquant_tables, matched, normalised_keys, normalised_values, thresholds
from kvjax.codec import NonUniformChannels, NonUniformTokens
from kvjax.codec.bit_stream import unpack_bits
from kvjax.encode import Absolute, Stored, Unrotated
from tests.artefacts import toy
from tests.conftest import ids_of
from tests.reference import kvquant as reference
from tests.reference.golden_methods import load

GOLDEN = load("kvquant")
LEVELS = np.float32(GOLDEN["lut"])


def batch(x):
    return jnp.asarray(x, jnp.float32)[None, None]


def key_codec(outliers: int) -> NonUniformChannels:
    low, high = (np.float32(GOLDEN[name])[None] for name in ("lower", "upper"))
    return NonUniformChannels(levels=LEVELS, low=low, high=high, outliers=outliers, store="float32")


def test_the_authors_keys():
    """Sparse: as many outliers as a token has; dense: none, so that they get the end levels. Codes, thresholds and values."""
    x, most = batch(GOLDEN["key"]), int(GOLDEN["key_outlier_mask"].sum(1).max())
    rows = key_codec(most).encode(x)
    named = np.asarray(rows.index[0, 0])
    mask = np.zeros((128, 65), bool)
    mask[np.arange(128)[:, None], named] = True
    np.testing.assert_array_equal(mask[:, :64], GOLDEN["key_outlier_mask"] == 1)
    np.testing.assert_allclose(key_codec(most).decode(rows, jnp.float32)[0, 0], GOLDEN["key_nuq_sparse"], atol=2e-6)
    dense = key_codec(0)
    np.testing.assert_allclose(dense.decode(dense.encode(x), jnp.float32)[0, 0], GOLDEN["key_nuq_dense"], atol=2e-6)
    offset, spread = (GOLDEN["upper"] + GOLDEN["lower"]) / 2, (GOLDEN["upper"] - GOLDEN["lower"]) / 2
    codes = np.abs(((GOLDEN["key"] - offset) / spread)[..., None] - GOLDEN["lut"]).argmin(-1)
    np.testing.assert_array_equal(unpack_bits(rows.code, 64, 3)[0, 0], codes)


def test_the_authors_values():
    codec = NonUniformTokens(levels=LEVELS, each=1, store="float32")
    rows = codec.encode(batch(GOLDEN["value"]))
    mask = np.zeros((128, 64), bool)
    mask[np.arange(128)[:, None], np.asarray(rows.index[0, 0])] = True
    np.testing.assert_array_equal(mask, GOLDEN["value_outlier_mask"] == 1)
    np.testing.assert_allclose(codec.decode(rows, jnp.float32)[0, 0], GOLDEN["value_nuq_dynamic_sparse"], atol=2e-6)
    inside = np.where(mask, np.nan, GOLDEN["value"])
    low, high = np.nanmin(inside, 1), np.nanmax(inside, 1)
    np.testing.assert_allclose(rows.offset[0, 0], (low + high) / 2, atol=1e-6)
    np.testing.assert_allclose(rows.spread[0, 0], (high - low) / 2, rtol=1e-6)
    codes, _ = reference.codes(((GOLDEN["value"].T - (low + high) / 2) / ((high - low) / 2)).T, GOLDEN["lut"]), None
    np.testing.assert_array_equal(unpack_bits(rows.code, 64, 3)[0, 0], codes)


def test_first_tokens_are_the_authors():
    """Their first four tokens in full precision are our sinks."""
    np.testing.assert_array_equal(GOLDEN["key_nuq_sparse_first4_fp"][:4], GOLDEN["key"][:4])
    np.testing.assert_array_equal(GOLDEN["key_nuq_sparse_first4_fp"][4:], GOLDEN["key_nuq_sparse"][4:])


def cost(x, weight, levels):
    return (weight * np.abs(x[:, None] - levels).min(1) ** 2).sum()


def test_our_levels_cost_no_more_than_the_authors():
    low, high = GOLDEN["lower"][None], GOLDEN["upper"][None]
    x, inside = normalised_keys(GOLDEN["key"][None], low, high)
    x, weight = x[inside], GOLDEN["fisher"][None][inside]
    ours, theirs = (cost(x, weight, c) for c in (fit_levels(x, weight, 3), GOLDEN["lut"]))
    assert ours <= 1.02 * theirs


def test_q7_levels_and_one_outlier():
    levels = np.float32([-0.8, -0.25, 0.2, 0.9])
    two = np.full((1, 8), 2.0, np.float32)
    codec = NonUniformChannels(levels=levels, low=-two, high=two, outliers=1, store="float32")
    rows = codec.encode(batch([[2, -1, 0.4, 9, 0, 0, 0, 0]]))
    np.testing.assert_array_equal(unpack_bits(rows.code, 8, 2)[0, 0, 0, :4], [3, 1, 2, 3])
    np.testing.assert_allclose(codec.decode(rows, jnp.float32)[0, 0, 0, :4], [1.8, -0.5, 0.4, 9], atol=1e-6)
    np.testing.assert_array_equal(rows.index[0, 0, 0], [3])


def test_q7_weighted_update():
    x, w, cluster = np.array([-1, -0.8, 0.1, 0.3, 0.9]), np.array([1, 3, 1, 1, 2]), np.array([0, 0, 1, 1, 2])
    np.testing.assert_allclose(reference.weighted_means(x, w, cluster), [-0.85, 0.2, 0.9])
    np.testing.assert_allclose(fit_levels(x[:4], w[:4], 1), [-0.85, 0.2], atol=1e-6)


def test_levels_are_the_means_of_what_is_nearest():
    """Nothing moves any more after the last update."""
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=200), rng.random(200)
    found = fit_levels(x, w, 2)
    nearest = np.abs(x[:, None] - found).argmin(1)
    np.testing.assert_allclose(reference.weighted_means(x, w, nearest), found, atol=1e-6)


def test_q7_matched_statistics():
    want = [0.331042, -2.979381, 2.648339, 0]
    np.testing.assert_allclose(reference.matched(np.array([0.4, -1.6, 1.8, 0.2]), 0.0, 2.0), want, atol=1e-6)
    end = (np.sqrt(1.44 + 123.52) - 1.2) / 4
    x = np.array([-end - 0.6, 0.2, 0.4, end])  # mean 0, deviation 2, each nearest to its own level
    np.testing.assert_allclose((x.mean(), x.std()), (0, 2), atol=1e-12)
    np.testing.assert_allclose(matched(np.array([-1.6, 0.2, 0.4, 1.8]), x), np.sort(want), atol=1e-6)


def test_levels_of_few_points_and_of_no_weight():
    np.testing.assert_allclose(np.unique(fit_levels(np.array([1.0, 2.0]), np.zeros(2), 3)), [1, 2])
    assert np.isfinite(fit_levels(np.zeros(9), np.zeros(9), 2)).all()


def test_outliers_beyond_the_cap_get_the_end_levels():
    two = np.full((1, 8), 1.0, np.float32)
    codec = NonUniformChannels(levels=np.float32([-1, -0.3, 0.3, 1]), low=-two, high=two, outliers=2)
    got = codec.decode(codec.encode(batch([[5, -7, 3, 0.2, 0, 0, 0, 0]])), jnp.float32)[0, 0, 0]
    np.testing.assert_allclose(got[:4], [5, -7, 1, 0.3], atol=1e-6)


def test_channels_and_tokens_without_a_range():
    still = np.zeros((1, 8), np.float32)
    channels = NonUniformChannels(levels=np.float32([-1, 1]), low=still + 3, high=still + 3, outliers=2)
    tokens = NonUniformTokens(levels=np.float32([-1, 1]))
    for codec in (channels, tokens):
        np.testing.assert_array_equal(codec.decode(codec.encode(jnp.full((1, 1, 2, 8), 3.0)), jnp.float32), 3)


def test_bits():
    """b + 24 an outlier, and 32 a value's token: codes of three bits spare none."""
    encode = kvjax.methods.kvquant(artefact=toy("kvquant")).encode
    assert encode.keys.bits_a_number(16) == 3 + 3 and encode.values.bits_a_number(16) == 3 + 3 + 2


def test_unrotated_keys_read_as_rotated_ones(lm, pre):
    """Stored as they are, before the rotary embedding or after it: the same outputs."""
    outs = []
    for positions in (Absolute(), Unrotated()):
        policy = kvjax.Policy(encode=Stored(positions=positions))
        outs.append(kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=4, stop=(), return_logits=True))
    np.testing.assert_allclose(outs[0].logits, outs[1].logits, atol=2e-5)


def test_gradients_are_those_of_the_loss(lm):
    """A small step of the key, or of the value, that the loss feels most changes it by as much as its gradient says."""
    ids = ids_of(24)
    found = gradients_of(lm, [ids], sinks=1)
    assert found.k.shape == found.dk.shape == (3, 2, 23, 16)
    pre = kvjax.prefill(lm, ids, needs=kvjax.methods.kvquant(artefact=toy("kvquant")))
    np.testing.assert_allclose(found.v[1], np.asarray(pre.rows[0].v[1])[0, :, 1:24], atol=1e-5)
    np.testing.assert_array_equal(found.dv[:, :, -1], 0)  # nothing is predicted from the last token
    loss = jax.jit(lambda shift: _loss(lm.decoder, lm.params, jnp.asarray([ids], jnp.int32), shift)[0])
    for side, gradient in enumerate((found.dk, found.dv)):
        layer, h, n, d = np.unravel_index(np.abs(gradient).argmax(), gradient.shape)
        shift = [jnp.zeros((3, 1, 2, 24, 16)) for _ in range(2)]
        step = shift[side].at[layer, 0, h, n + 1, d].set(0.02)
        up, down = (loss(tuple(sign * step if i == side else x for i, x in enumerate(shift))) for sign in (1, -1))
        np.testing.assert_allclose((up - down) / 0.04, gradient[layer, h, n, d], rtol=0.05)


def test_calibrated_tables(lm):
    found = gradients_of(lm, [ids_of(60), ids_of(50, 3)], sinks=1)
    seen = []
    tables = kvquant_tables(found, bits=(2, 3), kept=0.9, each=1, progress=lambda *x: seen.append(x))
    assert tables["low"].shape == (3, 2, 16) and tables["levels_3"].shape == (3, 2, 8) and seen == [(i, 3) for i in (1, 2, 3)]
    low, high = thresholds(found.k, 0.9)
    outside = (found.k < low[:, :, None]) | (found.k > high[:, :, None])
    assert 0.05 < outside.mean() < 0.15
    x, inside = normalised_values(found.v[0], 1)
    assert inside.sum(-1).max() == 14 and np.abs(x[inside]).max() <= 1 + 1e-6
    for b in (2, 3):
        assert (np.diff(tables[f"levels_{b}"], axis=-1) >= 0).all() and np.abs(tables[f"levels_{b}"]).max() <= 1 + 1e-6


def test_the_built_in_artefact():
    assert "smollm2-135m/kvquant" in built_in()
    found = resolve("smollm2-135m", "kvquant")
    assert found.data["split"] == "calibration" and found.model["layers"] == 30
    for bits in (2, 3, 4):
        for match in (False, True):
            encode = kvjax.methods.kvquant(bits=bits, matched=match).encode
            assert encode.keys.bits == bits and encode != kvjax.methods.kvquant(bits=bits, matched=not match).encode
    with pytest.raises(ValueError, match="levels of"):
        kvjax.methods.kvquant(bits=5)


def test_an_artefact_of_another_model_is_refused(pre):
    with pytest.raises(ValueError, match="the model has 3"):
        kvjax.compress(pre, kvjax.methods.kvquant())
