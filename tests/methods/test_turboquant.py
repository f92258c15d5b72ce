"""TurboQuant's worked examples, its engine's bytes, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.codec import Fp8, Haar, Hadamard, Levels, Normed, Rotated, Uniform
from kvjax.codec.bit_stream import unpack_bits
from kvjax.codec.levels import nearest_level
from kvjax.codec.normed import unit_of
from kvjax.codec.rotation import hadamard
from tests.held import held
from tests.reference import turboquant as reference


def decoded(x, levels, rotation, corrected=False):
    """|x| R' c for one vector, from the library's own pieces."""
    unit, norm = unit_of(jnp.asarray(x, jnp.float32)[None, None, None])
    codes = nearest_level(jnp.matmul(unit, jnp.asarray(rotation, jnp.float32).T), jnp.asarray(levels, jnp.float32), ties_up=True)
    found = jnp.asarray(levels, jnp.float32)[codes]
    found = unit_of(found)[0] if corrected else found
    return codes[0, 0, 0], (norm[..., None] * found @ jnp.asarray(rotation, jnp.float32))[0, 0, 0]


def test_q10_one_bit_with_signs():
    rotation = hadamard(4) * np.array([1, -1, 1, 1])
    level = 0.398942
    np.testing.assert_allclose(rotation @ np.array([0.6, 0, 0.8, 0]), [0.7, 0.7, -0.1, -0.1], atol=1e-9)
    x = np.array([3.0, 0, 4, 0])
    _, plain = decoded(x, [-level, level], rotation)
    np.testing.assert_allclose(plain, [0, 0, 3.989423, 0], atol=1e-5)
    np.testing.assert_allclose(((plain - x) ** 2).sum() / 25, 0.36, atol=1e-3)
    _, one = decoded(x, [-level, level], rotation, corrected=True)
    np.testing.assert_allclose(one, [0, 0, 5, 0], atol=1e-5)
    np.testing.assert_allclose(((one - x) ** 2).sum() / 25, 0.40, atol=1e-6)


def test_a15_two_bits_of_the_engine():
    levels = np.asarray(Levels(2, density="normal").table(4))
    np.testing.assert_allclose(levels, [-0.755209, -0.226390, 0.226390, 0.755209], atol=1e-5)
    x, q = np.array([3.0, 0, 4, 0]), np.array([1, 2, 0, 1])
    codes, plain = decoded(x, levels, hadamard(4))
    np.testing.assert_array_equal(codes, [3, 3, 1, 1])
    np.testing.assert_allclose(plain, [2.644094, 0, 4.907994, 0], atol=2e-5)
    _, one = decoded(x, levels, hadamard(4), corrected=True)
    np.testing.assert_allclose(one, [2.371422, 0, 4.401858, 0], atol=2e-5)
    np.testing.assert_allclose((q @ x, q @ plain, q @ one), (3, 2.644094, 2.371422), atol=2e-5)
    np.testing.assert_allclose([((y - x) ** 2).sum() / 25 for y in (plain, one)], [0.038045, 0.022264], atol=2e-6)


@pytest.mark.parametrize("bits, want", [((4, 4), 134), ((3, 4), 118), ((3, 3), 102), ((8, 4), 196)])
def test_bytes_of_the_engine(bits, want):
    """A token and KV head of 128 channels, from live buffers."""
    encode = kvjax.methods.turboquant(*bits, engine=True).encode
    x = jax.random.normal(jax.random.key(0), (1, 1, 1, 128))
    rows = jax.tree.leaves([codec.encode(x) for codec in encode.codecs])
    assert sum(y.addressable_shards[0].data.nbytes for y in rows) == want
    assert sum(codec.bits_a_number(128) for codec in encode.codecs) * 128 == 8 * want


def test_what_each_form_is_made_of():
    paper, engine = (kvjax.methods.turboquant(engine=engine).encode for engine in (False, True))
    served = kvjax.methods.turboquant(key_bits=8, engine=True).encode
    assert paper.keys == Rotated(Normed(Levels(4)), rotation=Hadamard())
    assert isinstance(engine.values, Uniform) and engine.keys.codec.corrected and not engine.keys.rotation.signed
    assert served.keys == Fp8("e4m3")
    assert kvjax.methods.turboquant(rotation=Haar(3)).encode.values.rotation == Haar(3)
    with pytest.raises(ValueError, match="not both"):
        kvjax.methods.turboquant(inner_product=True, engine=True)


def test_levels_by_integration_are_the_librarys():
    for bits in (1, 3, 4):
        np.testing.assert_allclose(Levels(bits).table(16), reference.levels(bits, 16), atol=1e-6)
        np.testing.assert_allclose(Levels(bits, density="normal").table(16), reference.levels(bits, 16, True), atol=1e-6)


def test_codes_are_the_transcriptions():
    """Packed codes of a few hundred vectors, the engine's too."""
    x = np.random.default_rng(0).standard_normal((1, 1, 300, 16)).astype(np.float32)
    unit = x[0, 0].astype(np.float64) / np.linalg.norm(x[0, 0].astype(np.float64), axis=-1, keepdims=True)
    for engine, rotation in ((False, reference.signed_hadamard(16, 0)), (True, reference.sylvester(16))):
        codec = kvjax.methods.turboquant(key_bits=3, engine=engine).encode.keys
        got = unpack_bits(codec.encode(jnp.asarray(x)).unit, 16, 3)[0, 0]
        np.testing.assert_array_equal(got, reference.codes(unit @ rotation.T, reference.levels(3, 16, engine), engine))


def test_more_bits_come_closer(lm, pre):
    full = kvjax.methods.full()
    how = dict(max_new_tokens=2, stop=(), return_logits=True)
    want = kvjax.decode(lm, kvjax.compress(pre, full), full, **how).logits[0, 1]
    errors = []
    for bits in (2, 4, 8):
        policy = kvjax.methods.turboquant(bits, bits)
        out = kvjax.decode(lm, kvjax.compress(pre, policy), policy, **how)
        errors.append(float(np.abs(out.logits[0, 1] - want).max()))
    assert errors == sorted(errors, reverse=True) and errors[-1] < 0.05


def test_the_engine_leaves_layers_as_they_are(lm, pre):
    """The first and the last layer hold what was computed, the middle one codes; all take the bytes of what they hold."""
    policy = kvjax.methods.turboquant(engine=True, exact_layers=(0, 2))
    cache = kvjax.compress(pre, policy)
    for layer in (0, 1, 2):
        k, v = held(cache, policy.encode, layer, 0, 1)
        same = np.array_equal(k, pre.rows[0].k[layer][0, 1, :90]) and np.array_equal(v, pre.rows[0].v[layer][0, 1, :90])
        assert same == (layer != 1)
    out = kvjax.decode(lm, cache, policy, max_new_tokens=4, stop=(), return_logits=True)
    assert jnp.isfinite(out.logits).all()
