"""The small codecs and what goes around them: streams of bits, 8-bit floats, uniform steps, levels, rotations, norms, sketches."""

from fractions import Fraction
from types import MappingProxyType

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from kvjax.codec import (
    Affine,
    Balanced,
    ChannelRange,
    ChannelSeparable,
    Fp8,
    Haar,
    Hadamard,
    KeptChannels,
    Levels,
    LowRank,
    Normed,
    OutlierChannels,
    Outliers,
    Refined,
    Rotated,
    SignSketch,
    Uniform,
)
from kvjax.codec.bit_stream import pack_bits, stream_bytes, unpack_bits
from kvjax.codec.lloyd_max import sphere_levels
from kvjax.codec.rotation import hadamard, powers_of_two
from models import llama
from models.decoder import Decoder
from tests.conftest import toy_config

DRAW = np.random.default_rng(0).standard_normal((1, 2, 32, 16)).astype(np.float32)
X = jnp.asarray(DRAW)


def model_of(head_dim: int) -> Decoder:
    return Decoder(llama.config(toy_config(head_dim=head_dim)))


def there_and_back(codec, x=X, dtype=jnp.float32):
    return codec.decode(jax.jit(codec.encode)(x), dtype)


# ---- Bits


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("n", [1, 7, 8, 16, 33])
def test_streams_of_bits(bits, n):
    codes = np.random.default_rng(n).integers(0, 1 << bits, (2, n))
    packed = pack_bits(jnp.asarray(codes, jnp.int32), bits)
    whole = [sum(int(c) << bits * j for j, c in enumerate(row)) for row in codes]
    assert packed.shape == (2, stream_bytes(n, bits))
    assert [int.from_bytes(bytes(np.asarray(row)), "little") for row in packed] == whole
    np.testing.assert_array_equal(unpack_bits(packed, n, bits), codes)


# ---- Eight-bit floats

KINDS = MappingProxyType({"e4m3": (ml_dtypes.float8_e4m3fn, 448.0), "e5m2": (ml_dtypes.float8_e5m2, 57344.0)})


@pytest.mark.parametrize("kind", KINDS)
def test_eight_bit_floats_are_the_nearest(kind):
    dtype, top = KINDS[kind]
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((1, 1, 64, 64)) * np.exp(rng.uniform(-12, 12, (1, 1, 64, 64)))).astype(np.float32)
    x[0, 0, 0, :4] = [0.0, -0.0, 1e9, -1e9]
    rows = Fp8(kind).encode(jnp.asarray(x))
    np.testing.assert_array_equal(rows.byte, np.clip(x, -top, top).astype(dtype).view(np.uint8))
    np.testing.assert_array_equal(Fp8(kind).decode(rows, jnp.float32), np.clip(x, -top, top).astype(dtype).astype(np.float32))
    assert Fp8(kind).bits_a_number(64) == 8 and Fp8(kind, scaled=True).bits_a_number(64) == 8 + Fraction(16, 64)


@pytest.mark.parametrize("kind", KINDS)
def test_a_scale_fits_a_token_to_the_greatest_number(kind):
    x = 1e4 * X.at[0, 0, 3].set(0.0)
    got = there_and_back(Fp8(kind, scaled=True), x)
    assert np.abs(got - x).max() < (0.07 if kind == "e4m3" else 0.13) * np.abs(x).max()
    np.testing.assert_array_equal(got[0, 0, 3], 0)


def test_other_kinds_are_refused():
    with pytest.raises(ValueError, match="e4m3"):
        Fp8("e3m4")


# ---- Uniform steps


def test_halves_go_up():
    x = jnp.asarray([-1, 0, 0.5, 2, -1, -1, -1, -1], jnp.float32)[None, None, None]
    codec = Uniform(bits=4)
    rows = codec.encode(x)
    np.testing.assert_array_equal(unpack_bits(rows.code, 8, 4)[0, 0, 0], [0, 5, 8, 15, 0, 0, 0, 0])
    np.testing.assert_allclose(rows.scale, 0.2, rtol=1e-3)
    np.testing.assert_array_equal(codec.decode(codec.encode(jnp.full((1, 1, 2, 8), 3.0)), jnp.float32), 3.0)


# ---- Levels

#: Positive levels times sqrt(d): d = 64, 128 and the limit; mean squared errors of a unit vector.
TABLE = {
    1: ([0.8010], [0.7994], [0.7979]),
    2: ([0.4521, 1.5000], [0.4525, 1.5052], [0.4528, 1.5104]),
    3: ([0.2438, 0.7507, 1.3293, 2.1113], [0.2444, 0.7533, 1.3366, 2.1315], [0.2451, 0.7560, 1.3439, 2.1519]),
    4: (
        [0.1274, 0.3847, 0.6505, 0.9319, 1.2394, 1.5908, 2.0233, 2.6464],
        [0.1279, 0.3864, 0.6536, 0.9371, 1.2478, 1.6043, 2.0459, 2.6889],
        [0.1284, 0.3880, 0.6568, 0.9423, 1.2562, 1.6180, 2.0690, 2.7326],
    ),
}
LOST = {1: 0.3584, 2: 0.1145, 3: 0.0334, 4: 0.0091}


@pytest.mark.parametrize("bits", TABLE)
def test_levels_are_the_printed_ones(bits):
    for d, want in zip((64, 128), TABLE[bits][:2], strict=True):
        got = np.asarray(Levels(bits).table(d)) * np.sqrt(d)
        np.testing.assert_allclose(got[len(got) // 2 :], want, atol=5.1e-5)
        np.testing.assert_allclose(got, -got[::-1], atol=1e-6)
    limit = np.asarray(Levels(bits, density="normal").table(64)) * 8
    np.testing.assert_allclose(limit[len(limit) // 2 :], TABLE[bits][2], atol=5.1e-5)


@pytest.mark.parametrize("bits, d", [(3, 4), (6, 8), (4, 64), (8, 64), (8, 128)])
def test_a_level_is_the_mean_of_what_is_nearest_to_it(bits, d):
    """Of a million points of the density, summed; 8 / sqrt(d) cuts off less than 10^-9 of it."""
    levels = sphere_levels(bits, d)
    x = np.linspace(-1, 1, 2_000_001) * min(1, 8 / np.sqrt(d))
    p = np.maximum(1 - x**2, 0) ** ((d - 3) / 2)
    nearest = np.searchsorted((levels[1:] + levels[:-1]) / 2, x)
    means = np.bincount(nearest, p * x) / np.bincount(nearest, p)
    np.testing.assert_allclose(levels, means, atol=2e-5 / np.sqrt(d))
    assert (np.diff(levels) > 0).all()


@pytest.mark.parametrize("bits", LOST)
def test_a_random_direction_loses_what_is_printed(bits):
    x = jax.random.normal(jax.random.key(0), (1, 1, 4000, 64))
    x = x / jnp.linalg.norm(x, axis=-1, keepdims=True)
    lost = ((there_and_back(Levels(bits), x) - x) ** 2).sum(-1).mean()
    np.testing.assert_allclose(lost, LOST[bits], rtol=0.02)


def test_ties_go_down_or_up():
    x = jnp.zeros((1, 1, 1, 8))
    for up, code in ((False, 1), (True, 2)):
        np.testing.assert_array_equal(unpack_bits(Levels(2, ties_up=up).encode(x), 8, 2), code)


# ---- Rotations


@pytest.mark.parametrize("rotation", [Hadamard(3), Hadamard(signed=False), Haar(3)])
@pytest.mark.parametrize("d", [1, 8, 64, 80, 96])
def test_rotations_are_orthogonal(rotation, d):
    m = rotation.matrix(d)
    np.testing.assert_allclose(m @ m.T, np.eye(d), atol=1e-12)
    x = jax.random.normal(jax.random.key(1), (3, d))
    np.testing.assert_allclose(rotation.unrotate(rotation.rotate(x)), x, atol=3e-6)
    np.testing.assert_allclose(rotation.rotate(x)[0], m @ np.asarray(x[0], np.float64), atol=3e-6)


def test_a_dimension_that_is_no_power_of_two_is_rotated_in_blocks_or_refused():
    assert (powers_of_two(96), powers_of_two(80), powers_of_two(64)) == ([64, 32], [64, 16], [64])
    assert (hadamard(96)[:64, 64:] == 0).all()
    np.testing.assert_allclose(np.abs(hadamard(96)[64:, 64:]), 32**-0.5, rtol=1e-12)
    Hadamard().check(model_of(96))
    with pytest.raises(ValueError, match="power of two; the model's head dimension is 96"):
        Hadamard(blocks=False).check(model_of(96))


@pytest.mark.parametrize("kind", [Hadamard, Haar])
def test_a_checksum_tells_another_seed(kind):
    stored = kind(seed=7).digest(64)
    kind(seed=7, checksum=stored).check(model_of(64))
    assert len({kind(seed=s).digest(64) for s in range(20)}) == 20
    with pytest.raises(ValueError, match=f"not {stored}"):
        kind(seed=8, checksum=stored).check(model_of(64))
    with pytest.raises(ValueError, match="cannot be read"):
        Rotated(AFFINE, rotation=kind(seed=8, checksum=stored)).check(model_of(64), 10, 10)


def test_signs_never_change():
    """What was stored with a seed must be read with it, whatever version is installed."""
    assert (Hadamard(0).digest(64), Hadamard(7).digest(128)) == ("6170c64d", "b707d45f")


# ---- Around a codec

AFFINE = Affine(bits=8, group=16)


def test_a_rotated_codec_reads_as_its_decoded_numbers():
    codec = Rotated(AFFINE, rotation=Hadamard(2))
    np.testing.assert_allclose(there_and_back(codec), X, atol=0.03)
    assert codec.bits_a_number(16) == AFFINE.bits_a_number(16)


def test_norms_and_zeros():
    codec = Normed(AFFINE)
    np.testing.assert_allclose(there_and_back(codec, 100 * X), 100 * X, atol=2.0)
    np.testing.assert_array_equal(there_and_back(codec, 0 * X), 0)
    assert codec.bits_a_number(16) == AFFINE.bits_a_number(16) + 1
    one = there_and_back(Normed(Levels(2), corrected=True))
    norm = np.linalg.norm(DRAW, axis=-1).astype(np.float16)
    np.testing.assert_allclose(np.linalg.norm(one, axis=-1), norm, rtol=1e-5)


def test_a_refined_codec_loses_less():
    coarse = Affine(bits=2, group=16)
    lost = [float(((there_and_back(c) - X) ** 2).sum()) for c in (coarse, Refined(coarse, rest=coarse))]
    assert lost[1] < 0.2 * lost[0]
    assert Refined(coarse, rest=AFFINE).bits_a_number(16) == coarse.bits_a_number(16) + AFFINE.bits_a_number(16)


def test_an_error_may_be_coded_in_pages():
    codec = Refined(AFFINE, rest=Affine(bits=2, group=8, reduce="token"))
    assert codec.page == 8
    rows, pool = codec.encode(X), codec.rows(32, 16, jnp.float32)
    assert [x.shape[2:] for x in jax.tree.leaves(rows)] == [x.shape for x in jax.tree.leaves(pool)]


@pytest.mark.parametrize("block", [0, 8])
def test_a_channel_too_small_for_its_size_is_zero(block):
    """Its size, of 16 bits, would be 0, and all numbers of the row be divided by it."""
    x, codec = X.at[..., 3].set(1e-16), ChannelSeparable(bits=8, block=block)
    params = () if block else codec.fit(x, jnp.ones(x.shape[:3], bool))
    np.testing.assert_allclose(codec.decode(codec.encode(x, None, params), jnp.float32, params), x, atol=0.05)


@pytest.mark.parametrize("orthogonal", [False, True])
def test_sketches_estimate_products_without_bias(orthogonal):
    """Over many directions the products q·k^ are those of q·k on average, and their spread is the variance that signs have."""
    k, q = jax.random.normal(jax.random.key(1), (2, 1, 1, 4000, 64))
    q = q + k / 2
    found = (there_and_back(SignSketch(ratio=1, orthogonal=orthogonal), k) * q).sum(-1)
    want = (q * k).sum(-1)
    np.testing.assert_allclose(found.mean(), want.mean(), rtol=0.05)
    bound = jnp.sqrt((jnp.pi / 2) / 64) * jnp.linalg.norm(q, axis=-1) * jnp.linalg.norm(k, axis=-1)
    assert 0.5 < float((found - want).std() / bound.mean()) < 1.1


def test_levels_alone_are_biased_and_their_inner_product_form_is_not():
    """One bit shrinks products by 2 / pi; a sketch of what it misses does not."""
    x = jax.random.normal(jax.random.key(0), (1, 1, 2000, 64))
    shrunk = there_and_back(Normed(Levels(1)), x)
    np.testing.assert_allclose((shrunk * x).sum() / (x * x).sum(), 2 / np.pi, rtol=0.01)
    whole = there_and_back(Refined(Normed(Levels(1)), rest=SignSketch(ratio=1, orthogonal=False)), x)
    np.testing.assert_allclose((whole * x).sum() / (x * x).sum(), 1, rtol=0.02)


@pytest.mark.parametrize(
    "codec, want",
    [
        (Levels(3), 3), (Uniform(3), 3 + Fraction(32, 128)), (Normed(Levels(4)), 4 + Fraction(16, 128)),
        (SignSketch(ratio=2), 2 + Fraction(16, 128)), (Refined(Normed(Levels(2)), rest=SignSketch(ratio=1)), 3 + Fraction(32, 128)),
        (Outliers(Affine(2, 64, "token"), each=1, reduce="token", size=64), Fraction(5, 2) + Fraction(48, 64)),
        (Outliers(Affine(2, 64), each=1), Fraction(5, 2) + Fraction(48, 128)),
        (LowRank(Affine(2, 64), size=64, rank=2), Fraction(5, 2) + Fraction(3, 4)),
        (OutlierChannels(SignSketch(ratio=2), SignSketch(ratio=1), count=8, size=32), 3 + Fraction(32, 128) + Fraction(2, 128)),
    ],
)  # fmt: skip
def test_bits_of_a_number(codec, want):
    """At 128 channels, counted from the arrays that are stored."""
    assert codec.bits_a_number(128) == want
    rows = jax.tree.leaves(codec.encode(jnp.ones((1, 1, 2 * codec.page, 128))))
    assert 8 * sum(x.addressable_shards[0].data.nbytes for x in rows) == want * 2 * codec.page * 128


SAME_AGAIN = [
    Affine(bits=3, group=16), Fp8("e4m3"), Fp8("e5m2"), Levels(4), Normed(Levels(4), corrected=True),
    Rotated(Normed(Levels(4), corrected=True)), Outliers(Affine(bits=4, group=16, store="float32"), each=2),
]  # fmt: skip


@pytest.mark.parametrize("codec", SAME_AGAIN)
def test_coding_what_was_decoded_changes_nothing(codec):
    once = there_and_back(codec, X / 4 if isinstance(codec, Levels) else X)
    np.testing.assert_allclose(there_and_back(codec, once), once, atol=2e-3)


DRIFTING = [Normed(Levels(4)), Uniform(4), SignSketch(ratio=4), LowRank(Affine(bits=2, group=16), size=16)]


@pytest.mark.parametrize("codec", DRIFTING)
def test_coding_again_and_again_adds_no_more_than_once(codec):
    """What is not the same again does not run away either: each time loses at most what the first did."""
    found, lost = X, []
    for _ in range(8):
        found = there_and_back(codec, found)
        lost.append(float(jnp.sqrt(((found - X) ** 2).mean())))
    assert all(x <= (i + 1) * lost[0] + 1e-3 for i, x in enumerate(lost))


REFUSED = {
    "levels of no bits": (lambda: Levels(0), "1 to 8 bits"),
    "levels of another density": (lambda: Levels(2, density="flat"), "sphere"),
    "uniform codes of nine bits": (lambda: Uniform(9), "1 to 8 bits"),
    "a sketch of nothing": (lambda: SignSketch(ratio=0), "1 projection"),
    "norms of pages": (lambda: Normed(Affine(reduce="token")), "single slots"),
    "outliers of half pages": (lambda: Outliers(Affine(group=32, reduce="token"), reduce="token", size=48), "whole pages"),
    "outliers of no row": (lambda: Outliers(AFFINE, reduce="head"), "token"),
    "low rank of half pages": (lambda: LowRank(Affine(group=32, reduce="token"), size=48), "whole pages"),
    "no rank": (lambda: LowRank(AFFINE, rank=0), "rank 1"),
    "no outlier channel": (lambda: OutlierChannels(AFFINE, AFFINE, count=0), "1 channel"),
    "norms around what a prompt fits": (lambda: Normed(KeptChannels()), "fitted on each prompt; got KeptChannels"),
    "an error that a prompt fits": (lambda: Refined(AFFINE, rest=ChannelRange()), "fitted on each prompt; got ChannelRange"),
    "balanced pages": (lambda: Balanced(Affine(reduce="token")), "token by token"),
    "balanced ranges of a prompt": (lambda: Balanced(ChannelRange()), "token by token"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    make, why = REFUSED[name]
    with pytest.raises(ValueError, match=why):
        make()


UNFIT = {
    "bytes that are not filled": (Levels(3), 12, "multiple of 8"),
    "more rank than channels": (LowRank(AFFINE, rank=9), 8, "rank 9"),
    "more outliers than channels": (Outliers(Uniform(4), each=5), 8, "10 outliers"),
    "no channel left": (OutlierChannels(Uniform(4), Uniform(4), count=8), 8, "leave none"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_models_that_do_not_fit_are_refused(name):
    codec, head_dim, why = UNFIT[name]
    with pytest.raises(ValueError, match=why):
        (codec if name != "more rank than channels" else LowRank(Uniform(4), rank=9)).check(model_of(head_dim), 10, 10)
