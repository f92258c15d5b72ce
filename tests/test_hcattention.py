"""HCAttention against its NumPy transcription: a prompt and 64 decode steps, then stage by stage."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.calibrate.codebooks import collect_keys, fit_codebooks
from kvjax.encode import ByCallback, OnDevice, OnHost, ProductQuantized, Stored
from kvjax.kernels.select_top_p import top_p_mask
from kvjax.retrieve import Renormalized, SetOfGroupMean, SetPerQueryHead, TopP, UnionOfGroup
from tests.artefacts import toy
from tests.conftest import ids_of, policy_of
from tests.reference import hcattention as hc
from tests.reference.softmax import softmax

PROMPT, STEPS = 90, 64


@pytest.fixture(scope="module")
def codebook(lm):
    """Centroids fitted on the toy model: 2 channels each, 32 a group."""
    keys = collect_keys(lm, [ids_of(120, seed) for seed in (7, 8, 9)])
    with pytest.warns(UserWarning, match="few for 40"):
        fit_codebooks(keys[:1, :1], groups=8, centroids=40)
    return fit_codebooks(keys, groups=8, centroids=32)["codebook"]


def policy(codebook, placement=OnDevice(), tau=0.9, **how):
    encode = Stored(keys=ProductQuantized(codebook, origin="toy"), placement=placement)
    return kvjax.Policy(encode=encode, retrieve=TopP(tau=tau, **how))


class SlowRun:
    """One sequence through the model's own layers: exact prefill, then attention from codes in NumPy."""

    def __init__(self, lm, prompt, codebook, tau, read):
        self.lm, self.book, self.tau, self.read = lm, codebook, tau, read
        (row,) = kvjax.prefill(lm, prompt).rows
        n = len(prompt)
        self.v = [np.asarray(v[0, :, :n], np.float64) for v in row.v]
        self.codes = [[hc.codes(np.asarray(k[0, h, :n]), codebook[i][h]) for h in range(2)] for i, k in enumerate(row.k)]
        self.position, self.picked, self.margin = n, np.zeros(3), 1.0

    def _attend(self, layer, heads):
        q, k, v = (np.asarray(x[0], np.float64) for x in (heads.q[..., 0, :], heads.k[..., 0, :], heads.v[..., 0, :]))
        self.v[layer] = np.concatenate([self.v[layer], v[:, None]], 1)
        out = np.zeros(q.shape)
        for h, book in enumerate(self.book[layer]):
            p = self.codes[layer][h] = np.concatenate([self.codes[layer][h], hc.codes(k[h][None], book)])
            a = np.stack([hc.attention(x, p, book) for x in q[h]])
            rows = a.mean(0, keepdims=True) if self.read is mean_sets else a
            self.margin = min(self.margin, *(margin(row, self.tau) for row in rows))
            for g, slots in enumerate(self.read(a, self.tau)):
                self.picked[layer] += len(slots)
                out[h, g] = hc.output(a[g], self.v[layer][h], slots)
        return jnp.asarray(out[None, :, :, None], jnp.float32), None

    def step(self, token):
        params, decoder = self.lm.params, self.lm.decoder
        x, at = decoder.embed(params, jnp.asarray([[token]], jnp.int32)), jnp.asarray([[self.position]], jnp.int32)
        for layer, weights in enumerate(params["layers"]):
            x, _ = decoder.layer(weights, x, at, lambda heads, layer=layer: self._attend(layer, heads))
        self.position += 1
        return np.asarray(decoder.unembed(params, x)[0, -1])


def own_sets(a, tau):
    return [hc.chosen(row, tau) for row in a]


def union_sets(a, tau):
    return [sorted(set().union(*own_sets(a, tau)))] * len(a)


def mean_sets(a, tau):
    return [hc.chosen(a.mean(0), tau)] * len(a)


def region(cache, layer, row, h):
    """Positions, codes and values of one head, in slot order."""
    at = np.arange(int(cache.length[layer, row, h])) + int(cache.start[layer, row, h])
    values = cache.placement.take(cache.v, jnp.asarray(at, jnp.int32))
    return np.asarray(cache.numbered().pos)[at], np.asarray(cache.k)[at], np.asarray(values)


def margin(a, tau):
    """How far the closest decision is from going the other way: reaching tau a slot earlier or later, or another slot last."""
    ordered = np.sort(a)[::-1]
    gaps = -np.diff(ordered)[len(hc.chosen(a, tau)) - 1 :][:1]
    return min([np.abs(np.cumsum(ordered) - tau + hc.SLOP).min(), *gaps[gaps > 0]])


#: Prompts on which no decision is closer than float32 can tell; tau, sets, and their transcription.
RUNS = [(1, 0.9, SetPerQueryHead(), own_sets), (1, 0.5, UnionOfGroup(), union_sets), (7, 0.7, SetOfGroupMean(), mean_sets)]


@pytest.mark.parametrize("seed, tau, heads, read", RUNS)
def test_prompt_and_64_steps_follow_the_transcription(lm, codebook, seed, tau, heads, read):
    prompt, how = ids_of(PROMPT, seed), policy(codebook, tau=tau, heads=heads)
    slow = SlowRun(lm, prompt, codebook, tau, read)
    cache = kvjax.compress(kvjax.prefill(lm, prompt), how)
    compare(cache, slow)
    out = kvjax.decode(lm, cache, how, max_new_tokens=STEPS, stop=(), return_logits=True)
    logits = [slow.step(int(token)) for token in out.tokens[0]]
    assert slow.margin > 1e-7, "a decision float32 cannot tell: take another prompt"
    np.testing.assert_allclose(out.logits[0, 1:], logits[:-1], atol=1e-5)
    np.testing.assert_allclose(out.cache.logits[0], logits[-1], atol=1e-5)
    compare(out.cache, slow)
    seen = STEPS * 4 * (PROMPT + (STEPS + 1) / 2)
    np.testing.assert_array_equal(out.cache.retrieval.seen[:, 0], seen)
    np.testing.assert_array_equal(out.cache.retrieval.picked[:, 0], slow.picked)
    np.testing.assert_allclose(out.cache.retrieval.share[:, 0], slow.picked / seen, rtol=1e-6)


def compare(cache, slow):
    """Appended tokens' codes and values included."""
    for layer in range(3):
        for h in range(2):
            pos, codes, values = region(cache, layer, 0, h)
            np.testing.assert_array_equal(pos, np.arange(slow.position))
            np.testing.assert_array_equal(codes, slow.codes[layer][h])
            np.testing.assert_allclose(values, slow.v[layer][h], atol=1e-5)


@pytest.mark.parametrize("home", [pytest.param(OnHost(), marks=pytest.mark.slow), ByCallback()])
def test_the_home_of_values_changes_nothing(lm, codebook, home):
    """Two rows of different lengths; bytes are where the home says."""
    two = kvjax.prefill(lm, [ids_of(90), ids_of(61, 5)])
    here, there = policy(codebook), policy(codebook, home)
    want, got = (kvjax.decode(lm, kvjax.compress(two, p), p, max_new_tokens=8, stop=(), return_logits=True) for p in (here, there))
    np.testing.assert_array_equal(got.tokens, want.tokens)
    np.testing.assert_allclose(got.logits, want.logits, atol=1e-5)
    np.testing.assert_array_equal(got.cache.k, want.cache.k)
    np.testing.assert_array_equal(got.cache.retrieval.picked, want.cache.retrieval.picked)
    assert got.cache.host_nbytes == got.cache.slots * 16 * 4 and want.cache.host_nbytes == 0
    assert got.cache.nbytes == want.cache.nbytes - got.cache.host_nbytes
    for row in range(2):
        np.testing.assert_allclose(region(got.cache, 2, row, 1)[2], region(want.cache, 2, row, 1)[2], atol=1e-6)


def test_padding_and_rows_that_have_ended_read_nothing(lm):
    """Five tokens behind 40 as one block or one by one, of four query heads; a row that ends beside one that goes on."""
    how = kvjax.methods.full().replace(retrieve=kvjax.retrieve.TopP(tau=0.9))
    pre = kvjax.prefill(lm, [ids_of(40, 1), ids_of(40, 9)], needs=how)
    one, block = (kvjax.extend(lm, kvjax.compress(pre, how), [ids_of(5, 2)] * 2, how, block=n).cache.retrieval for n in (1, 64))
    np.testing.assert_array_equal(one.seen, np.full((3, 2), 4 * (41 + 42 + 43 + 44 + 45)))
    np.testing.assert_array_equal(block.seen, one.seen)
    np.testing.assert_array_equal(block.picked, one.picked)
    first = kvjax.decode(lm, kvjax.compress(pre, how), how, max_new_tokens=10, stop=())
    out = kvjax.decode(lm, kvjax.compress(pre, how), how, max_new_tokens=10, stop=(int(first.tokens[0, 0]),))
    assert out.lengths[0] == 1 < out.lengths[1]
    np.testing.assert_array_equal(out.cache.retrieval.seen[:, 0], 4 * 41)


def test_a_row_beside_another_is_what_it_is_alone(lm, codebook):
    how = policy(codebook)
    both, alone = kvjax.prefill(lm, [ids_of(90), ids_of(61, 5)]), kvjax.prefill(lm, ids_of(61, 5))
    run = lambda pre: kvjax.decode(lm, kvjax.compress(pre, how), how, max_new_tokens=8, stop=(), return_logits=True)  # noqa: E731
    both, alone = run(both), run(alone)
    np.testing.assert_allclose(both.logits[1], alone.logits[0], atol=1e-5)
    np.testing.assert_array_equal(both.cache.retrieval.picked[:, 1], alone.cache.retrieval.picked[:, 0])


def test_a_lossless_codebook_and_tau_1_is_the_full_cache(lm, pre):
    full = kvjax.methods.full()
    want = kvjax.decode(lm, kvjax.compress(pre, full), full, max_new_tokens=10, stop=(), return_logits=True)
    keys = lambda layer, h: region(want.cache, layer, 0, h)[1]  # noqa: E731
    book = np.stack([[keys(layer, h)[None] for h in range(2)] for layer in range(3)])
    how = policy(book, OnHost(), tau=1.0)
    got = kvjax.decode(lm, kvjax.compress(pre, how), how, max_new_tokens=10, stop=(), return_logits=True)
    np.testing.assert_array_equal(got.tokens, want.tokens)
    np.testing.assert_allclose(got.logits, want.logits, atol=1e-5)
    assert (got.cache.retrieval.share > 0.5).all()


def test_exact_keys_read_by_mass_differ_by_the_mass_left_out(lm, pre):
    full = kvjax.methods.full()
    want = kvjax.decode(lm, kvjax.compress(pre, full), full, max_new_tokens=4, stop=(), return_logits=True)
    errors, shares = [], []
    for tau in (0.3, 0.9, 0.999):
        how = full.replace(retrieve=TopP(tau=tau))
        got = kvjax.decode(lm, kvjax.compress(pre, how), how, max_new_tokens=4, stop=(), return_logits=True)
        errors.append(float(jnp.abs(got.logits[0, 1] - want.logits[0, 1]).max()))
        shares.append(float(got.cache.retrieval.share.mean()))
    assert errors[0] > errors[1] > errors[2] and errors[2] < 0.05
    assert shares == sorted(shares) and shares[0] < 0.5 < shares[2]


def test_the_newest_keys_may_stay_exact(lm, pre):
    """With as many as there are, codes lose nothing: decoding is that over keys as they are. Fewer take the bytes of the tail."""
    method = kvjax.methods.hcattention
    run = lambda p: kvjax.decode(lm, kvjax.compress(pre, p), p, max_new_tokens=6, stop=(), return_logits=True)  # noqa: E731
    whole, exact = run(method(toy("hcattention"), fp_window=128)), run(method(None))
    np.testing.assert_allclose(whole.logits, exact.logits, atol=1e-5)
    at_once = kvjax.compress(pre, method(toy("hcattention"))).nbytes
    tails = kvjax.compress(pre, method(toy("hcattention"), fp_window=8)).nbytes - at_once
    assert tails >= 3 * 2 * 9 * 16 * 4  # keys alone, with room for the step's


@pytest.mark.parametrize("placement", [OnDevice(), OnHost()])
@pytest.mark.parametrize("name", ["snapkv", pytest.param("d2o", marks=pytest.mark.slow)])
def test_eviction_over_codes(lm, prompt, codebook, name, placement):
    """The slots kept are those of the method; d2o goes on evicting and merging while decoding."""
    method = policy_of(name)
    coded = method.replace(encode=Stored(keys=ProductQuantized(codebook, origin="toy"), placement=placement))
    pre = kvjax.prefill(lm, prompt)
    plain, cache = kvjax.compress(pre, method), kvjax.compress(pre, coded)
    for layer in range(3):
        for h in range(2):
            pos, codes, v = region(cache, layer, 0, h)
            want_pos, k, want_v = region(plain, layer, 0, h)
            np.testing.assert_array_equal(pos, want_pos)
            np.testing.assert_array_equal(codes, hc.codes(k, codebook[layer][h]))
            np.testing.assert_allclose(v, want_v, atol=1e-6)
    out = kvjax.decode(lm, cache, coded, max_new_tokens=10, stop=(), return_logits=True)
    assert jnp.isfinite(out.logits).all()
    np.testing.assert_array_equal(out.cache.lengths, cache.lengths + (0 if method.when.decoding else 10))


# ---- Sets


@pytest.mark.parametrize("n", [1, 7, 64, 300])
@pytest.mark.parametrize("tau", [0.05, 0.3, 0.9, 0.999, 1.0])
def test_fewest_is_the_sorted_rule(n, tau):
    rng = np.random.default_rng(n)
    a = softmax(rng.normal(size=(20, n)) * rng.uniform(0.1, 6, (20, 1))).astype(np.float32)
    for row, mask in zip(a.astype(np.float64), jax.jit(top_p_mask)(a, tau), strict=True):
        order, k = np.argsort(-row, kind="stable"), int(mask.sum())
        mass, goal, unsure = np.cumsum(row[order]), tau - hc.SLOP, 5e-7  # float32 sums of a few hundred entries
        assert sorted(order[:k].tolist()) == np.flatnonzero(mask).tolist()
        assert mass[k - 1] >= goal - unsure and (k == 1 or mass[k - 2] < goal + unsure)


def test_fewest_takes_ties_from_the_front():
    a = jnp.asarray([[0.25, 0.25, 0.25, 0.25], [0.1, 0.4, 0.1, 0.4], [0.0, 1.0, 0.0, 0.0]], jnp.float32)
    assert top_p_mask(a, 0.5).tolist()[0] == [True, True, False, False]
    assert top_p_mask(a, 0.85).tolist()[1] == [True, True, False, True]
    assert top_p_mask(a, 1.0).tolist()[2] == [False, True, False, False]
    assert top_p_mask(0.5 * a, 0.9).tolist()[0] == [True] * 4


def test_renormalised_weights_sum_to_one():
    a = jnp.asarray([[[[[0.6, 0.3, 0.0]]], [[[0.0, 0.0, 0.0]]]]])
    np.testing.assert_allclose(Renormalized()(a)[0, :, 0, 0], [[2 / 3, 1 / 3, 0], [0, 0, 0]], rtol=1e-6)


# ---- Codes


@pytest.mark.parametrize("shared", [False, True])
def test_codes_go_there_and_back(shared):
    rng = np.random.default_rng(0)
    book = rng.normal(size=(2, 3, 1 if shared else 4, 300, 4)).astype(np.float16)
    encode, k = ProductQuantized(book).at(1), rng.normal(size=(2, 3, 600, 16)).astype(np.float32)
    rows = encode.encode(jnp.asarray(k))
    assert rows.dtype == jnp.uint16 and encode.rows(64, 16, jnp.float32).shape == (64, 4)
    back = encode.decode(rows, jnp.bfloat16)
    for b, h in np.ndindex(2, 3):
        p = hc.codes(k[b, h], book[1, h])
        np.testing.assert_array_equal(rows[b, h], p)
        np.testing.assert_array_equal(back[b, h], hc.decoded(p, book[1, h]).astype(jnp.bfloat16))


def test_equal_centroids_give_the_lower_code():
    book = np.zeros((1, 1, 1, 5, 2), np.float16)
    book[..., 3:, :] = 1
    rows = ProductQuantized(book).at(0).encode(jnp.asarray([[[[0.9, 1.0, -1.0, 0.1]]]]))
    assert rows.dtype == jnp.uint8 and rows[0, 0, 0].tolist() == [3, 0]


@pytest.mark.parametrize(
    "shape, message",
    [
        ((2, 2, 8, 4, 2), "fit codebooks for this model"),
        ((3, 1, 8, 4, 2), "fit codebooks for this model"),
        ((3, 2, 8, 4, 3), "head dimension 16"),
        ((3, 2, 4, 4, 2), "head dimension 16"),
        ((3, 2, 8, 65537, 2), "16 bits"),
    ],
)
def test_codebooks_that_do_not_fit_are_refused(pre, shape, message):
    with pytest.raises(ValueError, match=message):
        kvjax.compress(pre, policy(np.zeros(shape, np.float16)))


@pytest.mark.parametrize("tau", [0, -0.1, 1.5])
def test_a_share_of_the_mass_is_in_0_to_1(tau):
    with pytest.raises(ValueError, match="tau"):
        TopP(tau=tau)


def test_the_method_is_its_stages(codebook):
    found = policy_of("hcattention")
    assert isinstance(found.encode.keys, ProductQuantized) and found.encode.placement == OnHost() and found.retrieve == TopP(0.9)
    assert found == policy_of("hcattention") and found != found.replace(encode=Stored())
