"""Storage put together from codecs, windows and sinks: what is refused, what is read, what crosses."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import kvjax
from kvjax.allocate import Adaptive
from kvjax.codec import Affine, ChannelSeparable, Codec, Rotated, Transformed
from kvjax.encode import AsIs, BlockFlush, ByCallback, OnHost, ProductQuantized, Slide, Stored, Windows
from kvjax.retrieve import TopP
from tests.conftest import ids_of, policy_of
from tests.held import held, two_steps_and_a_third
from tests.reference import affine as reference
from tests.reference.coded import resolved

FOUR, PAGED = Affine(bits=4, group=8), Affine(bits=4, group=8, reduce="token")
HOW = dict(stop=(), return_logits=True)

REFUSED = {
    "coded values on the host": (dict(values=FOUR, placement=OnHost()), "live on the device"),
    "coded values behind a callback": (dict(values=FOUR, placement=ByCallback()), "live on the device"),
    "pages without a window": (dict(keys=PAGED), "window of whole pages"),
    "pages pushed out slot by slot": (dict(keys=PAGED, window=Slide(16)), "window of whole pages"),
    "blocks that pages do not fill": (dict(keys=PAGED, window=BlockFlush(12)), "window of whole pages"),
    "sinks of dense slots": (dict(sinks=4, window=Slide(4)), "exact sinks"),
    "sinks without a window": (dict(keys=FOUR, sinks=4), "exact sinks"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    wrong, why = REFUSED[name]
    with pytest.raises(ValueError, match=why):
        Stored(**wrong)


@pytest.mark.parametrize("make, size", [(BlockFlush, 0), (Slide, -1)])
def test_windows_of_no_size_are_refused(make, size):
    with pytest.raises(ValueError, match="got"):
        make(size)


def test_groups_that_do_not_divide_a_head_are_refused(pre):
    with pytest.raises(ValueError, match="head dimension 16"):
        kvjax.compress(pre, kvjax.Policy(encode=Stored(values=Affine(group=12))))


def test_two_built_alike_are_one():
    make = lambda size: Stored(keys=PAGED, values=FOUR, window=Windows(BlockFlush(size), Slide(8)), sinks=2)  # noqa: E731
    assert make(16) == make(16) and hash(make(16)) == hash(make(16)) and make(16) != make(8)
    assert jax.tree.structure(make(16)) != jax.tree.structure(make(8))


# ---- What attention reads


def region(pre, layer, h, pos):
    return tuple(np.asarray(x[layer])[0, h, pos] for x in (pre.rows[0].k, pre.rows[0].v))


def coded(x, axis=1):
    return reference.dequantise(reference.quantise(x, bits=4, group=8, axis=axis, store=np.float16))


def test_codes_of_all_heads_stay_so_inside_another_codec(lm):
    """Heads keep different tokens: the i-th slots that they keep are one code, not those of one token."""
    basis = np.stack([np.linalg.qr(np.random.default_rng(layer).normal(size=(32, 32)))[0] for layer in range(3)])
    whole = Transformed(AsIs(), basis=basis, mean=np.zeros((3, 32)), origin="toy")
    policy = kvjax.methods.knorm(budget=24).replace(encode=Stored(keys=Rotated(whole)))
    pre = kvjax.prefill(lm, ids_of(90), needs=policy)
    cache = kvjax.compress(pre, policy)
    for layer in range(3):
        first, second = kept = cache.kept(layer)[0]
        assert set(first) != set(second)
        for h in range(2):
            got, want = held(cache, policy.encode, layer, 0, h)[0], region(pre, layer, h, kept[h])[0]
            np.testing.assert_allclose(got, want, atol=1e-4)
    with pytest.raises(ValueError, match="all hold as many"):
        kvjax.compress(pre, policy.replace(allocate=Adaptive()))


def test_the_padding_of_a_prompt_is_in_no_code(lm):
    """Where heads hold more or fewer slots, rows that are coded together are of fewer heads towards their end."""
    policy = kvjax.methods.knorm(budget=24).replace(allocate=Adaptive(), encode=Stored(values=ChannelSeparable(4)))
    pre = kvjax.prefill(lm, ids_of(90), needs=policy)
    row = pre.rows[0]
    assert row.v[0].shape[2] > 90
    other = pre.replace(rows=(row.replace(v=jax.tree.map(lambda x: x.at[..., 90:, :].set(50.0), row.v)),))
    one, two = (kvjax.compress(x, policy) for x in (pre, other))
    assert len(np.unique(one.lengths)) > 1
    for layer in range(3):
        for h in range(2):
            got, want = (held(cache, policy.encode, layer, 0, h)[1] for cache in (two, one))
            np.testing.assert_array_equal(got, want)


WINDOWED = {
    "a window for both": Stored(keys=PAGED, values=FOUR, window=BlockFlush(16)),
    "sinks": Stored(keys=PAGED, values=FOUR, window=Windows(BlockFlush(16), Slide(5)), sinks=3),
    "keys alone": Stored(keys=FOUR, window=Slide(7)),
    "values alone": Stored(values=FOUR, window=Slide(0), sinks=1),
    "nothing exact": Stored(keys=FOUR, values=FOUR),
}


@pytest.mark.parametrize("method", ["full", "adakv"])
@pytest.mark.parametrize("name", WINDOWED)
def test_slots_are_coded_exact_or_sinks(lm, pre, name, method):
    policy = policy_of(method).replace(encode=WINDOWED[name])
    cache = kvjax.compress(pre, policy)
    for layer, h in np.ndindex(3, 2):
        pos = cache.kept(layer)[0][h]
        for side, x in enumerate(region(pre, layer, h, pos)):
            codec, window = policy.encode.codecs[side], policy.encode.windows[side]
            want, n, seen = x.astype(np.float64), len(pos), held(cache, policy.encode, layer, 0, h)[side]
            done = n if window is None else int(window.coded(jnp.int32(n)))
            if not codec.dense:
                code = partial(coded, axis=0 if codec.page > 1 else 1)
                want[:done] = resolved(code, x[:done].astype(np.float64), seen[:done])
            if window is not None:
                want[: policy.encode.sinks] = x[: policy.encode.sinks]
            np.testing.assert_allclose(seen, want, atol=1e-5)


@pytest.mark.parametrize("name", WINDOWED)
def test_attention_is_that_over_what_is_held(lm, pre, name):
    """Three steps; the last one's attention in NumPy over every slot as it is held before that step's flush."""
    policy = kvjax.Policy(encode=WINDOWED[name])
    two, last = two_steps_and_a_third(lm, pre, policy)
    token, at = int(last.tokens[0, 0]), int(two.cache.position[0])

    def attend(inputs, layer):
        outs = []
        for h in range(2):
            old = held(two.cache, policy.encode, layer, 0, h)
            k, v = (np.vstack([a, np.asarray(b)[0, h]]) for a, b in zip(old, (inputs.k, inputs.v), strict=True))
            for side, x in enumerate((k, v)):  # without a window a token is coded before it is read
                codec, window = policy.encode.codecs[side], policy.encode.windows[side]
                if window is None and not codec.dense:
                    x[-1:] = resolved(coded, x[-1:], held(last.cache, policy.encode, layer, 0, h)[side][-1:])
            z = np.asarray(inputs.q)[0, h, :, 0].astype(np.float64) @ k.T / 4
            a = np.exp(z - z.max(-1, keepdims=True))
            outs.append(a / a.sum(-1, keepdims=True) @ v)
        return jnp.asarray(np.stack(outs)[None, :, :, None], inputs.q.dtype), None

    x = lm.decoder.embed(lm.params, jnp.asarray([[token]], jnp.int32))
    for layer, weights in enumerate(lm.params["layers"]):
        x, _ = lm.decoder.layer(weights, x, jnp.asarray([[at]], jnp.int32), lambda inputs, layer=layer: attend(inputs, layer))
    np.testing.assert_allclose(last.cache.logits, np.asarray(lm.decoder.unembed(lm.params, x))[:, 0], atol=1e-4)


@pytest.mark.parametrize("name", ["sinks", "values alone"])
def test_row_is_solo(lm, name):
    prompts, policy = [ids_of(n, seed=n) for n in (70, 2, 17)], kvjax.Policy(encode=WINDOWED[name])
    together = kvjax.decode(lm, kvjax.compress(kvjax.prefill(lm, prompts), policy), policy, max_new_tokens=20, **HOW)
    for r, ids in enumerate(prompts):
        cache = kvjax.compress(kvjax.prefill(lm, ids), policy)
        alone = kvjax.decode(lm, cache, policy, max_new_tokens=20, pool_budget=70, **HOW)  # one program for all
        np.testing.assert_array_equal(together.tokens[r], alone.tokens[0])
        np.testing.assert_allclose(together.logits[r], alone.logits[0], atol=3e-5)


# ---- Crossings


def test_d2o_over_four_bit_values(lm, pre):
    """Merged and evicted while decoding, in codes: what is not moved is what it was coded to."""
    method = policy_of("d2o")
    policy = method.replace(encode=Stored(values=FOUR))
    plain, cache = kvjax.compress(pre, method), kvjax.compress(pre, policy)
    for layer, h in np.ndindex(3, 2):
        (k, v), (want_k, want_v) = held(cache, policy.encode, layer, 0, h), held(plain, method.encode, layer, 0, h)
        np.testing.assert_array_equal(k, want_k)
        np.testing.assert_allclose(v, resolved(coded, want_v, v), atol=1e-5)
    out = kvjax.decode(lm, cache, policy, max_new_tokens=10, **HOW)
    exact = kvjax.decode(lm, plain, method, max_new_tokens=10, **HOW)
    np.testing.assert_array_equal(out.cache.lengths, cache.lengths)
    assert np.abs(out.logits[0, 1] - exact.logits[0, 1]).max() < 0.3 and jnp.isfinite(out.logits).all()


@pytest.mark.parametrize("size", [8, 200])
def test_hcattention_with_its_newest_keys_exact(lm, pre, size):
    """Values on the host as before; a window that holds the whole text makes the codes of no consequence."""
    method = policy_of("hcattention").replace(retrieve=TopP(tau=0.999))
    codes = method.encode.keys
    assert isinstance(codes, ProductQuantized)
    policy = method.replace(encode=Stored(keys=codes, placement=OnHost(), window=Slide(size)))
    dense = method.replace(encode=Stored(placement=OnHost()))
    got, old, want = (kvjax.decode(lm, kvjax.compress(pre, p), p, max_new_tokens=2, **HOW) for p in (policy, method, dense))
    errors = [float(np.abs(x.logits[0, 1] - want.logits[0, 1]).max()) for x in (got, old)]
    assert got.cache.host_nbytes == want.cache.host_nbytes > 0 and errors[1] > 0.05
    assert errors[0] < (2e-5 if size == 200 else errors[1] + 0.5) and errors[0] != errors[1]


# ---- A codec that is fitted on each prompt


@struct.dataclass
class Scaled(Codec):
    """Bytes: x / max |x| of the prompt's channel, rounded to 1/127; a test's own codec."""

    def rows(self, slots, d, dtype):
        return jnp.zeros((slots, d), jnp.int8)

    def fit(self, x, valid):
        return jnp.where(valid[..., None], jnp.abs(x), 0).max(2, keepdims=True).astype(jnp.float32)

    def encode(self, x, pos=None, params=()):
        return jnp.clip(jnp.round(127 * x / params), -127, 127).astype(jnp.int8)

    def decode(self, rows, dtype, params=()):
        return (rows * params / 127).astype(dtype)


def test_a_codec_is_fitted_on_each_prompt(lm):
    prompts, policy = [ids_of(60, 1), ids_of(33, 2)], kvjax.Policy(encode=Stored(keys=Scaled(), values=Scaled()))
    pre = kvjax.prefill(lm, prompts)
    cache = kvjax.compress(pre, policy)
    most = np.stack([np.abs(np.asarray(row.k[1])[0, :, :n]).max(1) for row, n in zip(pre.rows, (60, 33), strict=True)])
    np.testing.assert_allclose(cache.fitted[0][1, :, :, 0], most, rtol=1e-6)
    together = kvjax.decode(lm, cache, policy, max_new_tokens=6, **HOW)
    alone = [kvjax.compress(kvjax.prefill(lm, ids), policy) for ids in prompts]
    stacked = kvjax.decode(lm, kvjax.stack(alone), policy, max_new_tokens=6, **HOW)
    full = kvjax.methods.full()
    exact = kvjax.decode(lm, kvjax.compress(pre, full), full, max_new_tokens=6, **HOW)
    np.testing.assert_allclose(together.logits, stacked.logits, atol=3e-5)
    assert 0 < np.abs(together.logits[:, 1] - exact.logits[:, 1]).max() < 0.2
    h2o = policy_of("h2o").replace(encode=policy.encode)
    assert jnp.isfinite(kvjax.decode(lm, kvjax.compress(pre, h2o), h2o, max_new_tokens=4, **HOW).logits).all()


def test_dense_storage_reads_no_tail(pre):
    cache = kvjax.compress(pre, kvjax.Policy(encode=Stored(window=BlockFlush(16))))
    assert cache.tails == ((), ()) and Stored(window=BlockFlush(16)).dense and AsIs().dense
