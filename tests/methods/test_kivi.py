"""KIVI against its NumPy transcription: a prompt and 64 decode steps; its schedule, its bytes, and what it crosses with."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.prefill.run import Prefilled, PrefilledRow
from models import llama
from models.decoder import Decoder
from tests.conftest import counted_leaves, ids_of, policy_of, toy_config
from tests.held import held
from tests.reference.kivi import Kivi, counts, kivi_nbytes

PROMPT, STEPS, R = 90, 64, 16


def method(bits=4):
    return kvjax.methods.kivi(bits=bits, key_group=8, value_group=8, residual=R)


class Reference:
    """One sequence through the model's own layers: exact prefill, then the transcription in every KV head."""

    def __init__(self, lm, pre, bits, ended):
        """`ended`: the cache after the last step, which decides ties of float16 and nothing else."""
        self.lm, self.position, encode = lm, pre.lengths[0], method(bits).encode

        def make(layer, h):
            k, v = held(ended, encode, layer, 0, h)
            return Kivi(16, bits, bits, group_k=8, group_v=8, residual=R, held_k=k, held_v=v)

        self.heads = [[make(layer, h) for h in range(2)] for layer in range(3)]
        for layer, heads in enumerate(self.heads):
            for h, head in enumerate(heads):
                k, v = (np.asarray(x[layer])[0, h, : self.position] for x in (pre.rows[0].k, pre.rows[0].v))
                head.extend(np.zeros((2, *k.shape)), k, v)

    def step(self, token):
        x = self.lm.decoder.embed(self.lm.params, jnp.asarray([[token]], jnp.int32))
        at = jnp.asarray([[self.position]], jnp.int32)
        for layer, weights in enumerate(self.lm.params["layers"]):

            def attend(inputs, layer=layer):
                q, k, v = (np.asarray(y)[0] for y in (inputs.q, inputs.k, inputs.v))
                out = [head.step(q[h, :, 0], k[h, 0], v[h, 0])[0] for h, head in enumerate(self.heads[layer])]
                return jnp.asarray(np.stack(out)[None, :, :, None], inputs.q.dtype), None

            x, _ = self.lm.decoder.layer(weights, x, at, attend)
        self.position += 1
        return np.asarray(self.lm.decoder.unembed(self.lm.params, x))[0, 0]


def same_but_for_roundings(found, want):
    """Equal, but for two groups of 8 at most whose minimum, after steps in float32, rounds to the neighbour in float16."""
    assert (np.abs(found - want) > 1e-5).sum() <= 2 * 8
    np.testing.assert_allclose(found, want, atol=2**-9)


@pytest.mark.parametrize("bits", [2, 4])
def test_a_prompt_and_64_steps(lm, bits):
    pre, policy = kvjax.prefill(lm, ids_of(PROMPT)), method(bits)
    out = kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=STEPS, stop=(), return_logits=True)
    slow = Reference(lm, pre, bits, out.cache)
    want = [slow.step(int(token)) for token in out.tokens[0]]
    np.testing.assert_allclose(out.logits[0, 0], pre.rows[0].logits, atol=1e-6)
    np.testing.assert_allclose(out.logits[0, 1:], want[:-1], atol=1e-4)
    np.testing.assert_allclose(out.cache.logits[0], want[-1], atol=1e-4)
    for layer, heads in enumerate(slow.heads):
        for h, head in enumerate(heads):
            k, v = held(out.cache, policy.encode, layer, 0, h)
            same_but_for_roundings(k, head.keys())
            same_but_for_roundings(v, head.values())


def counted(cache):
    """(keys coded, keys exact, values coded, values exact) of every region, from the cache's own counters; all must agree."""
    coded = [np.unique(tail.coded) for tail in cache.tails]
    (n,), (keys,), (values,) = np.unique(cache.lengths), *coded
    return keys, n - keys, values, n - values


def test_the_schedule_of_the_example(lm):
    policy = kvjax.methods.kivi(key_group=4, value_group=4, residual=4)
    cache, seen = kvjax.compress(kvjax.prefill(lm, ids_of(10)), policy), {}
    for n in range(10, 17):
        seen[n] = counted(cache)
        cache = kvjax.extend(lm, cache, [n], policy, pool_budget=64).cache
    example = {10: (8, 2, 6, 4), 11: (8, 3, 7, 4), 12: (12, 0, 8, 4), 13: (12, 1, 9, 4), 16: (16, 0, 12, 4)}
    assert {n: seen[n] for n in example} == example
    assert seen == {n: counts(n, 4) for n in seen}


def test_tokens_fed_together_are_tokens_fed_one_by_one(lm):
    policy, more = method(), ids_of(30, 3)
    start = kvjax.compress(kvjax.prefill(lm, ids_of(21)), policy)
    whole = kvjax.extend(lm, start, more, policy, return_logits=True, pool_budget=64)
    cache, parts = start, []
    for token in more:
        read = kvjax.extend(lm, cache, [token], policy, return_logits=True, pool_budget=64)
        cache = read.cache
        parts.append(read.logits[0, 0])
    np.testing.assert_allclose(whole.logits[0], parts, atol=1e-6)
    assert counted(whole.cache) == counted(cache) == counts(51, R)


@pytest.mark.parametrize("length", [1, 5, 40])
def test_what_fits_the_window_is_exact(lm, length):
    policy, full = kvjax.methods.kivi(key_group=8, value_group=8, residual=64), kvjax.methods.full()
    pre = kvjax.prefill(lm, ids_of(length))
    got, want = (
        kvjax.decode(lm, kvjax.compress(pre, p), p, max_new_tokens=12, stop=(), return_logits=True) for p in (policy, full)
    )
    np.testing.assert_allclose(got.logits, want.logits, atol=2e-5)
    assert all(int(tail.coded.max()) == 0 for tail in got.cache.tails)


LENGTHS = [90, 3, 41, 17, 16]


def test_row_is_solo(lm):
    prompts, policy = [ids_of(n, seed=n) for n in LENGTHS], method()
    batch = kvjax.compress(kvjax.prefill(lm, prompts), policy)
    alone = [kvjax.compress(kvjax.prefill(lm, ids), policy) for ids in prompts]
    how = dict(max_new_tokens=20, stop=(), return_logits=True, pool_budget=90)  # one program for all that are alone
    together = [kvjax.decode(lm, x, policy, **how) for x in (batch, kvjax.stack(alone))]
    for r, cache in enumerate(alone):
        solo = kvjax.decode(lm, cache, policy, **how)
        for out in together:
            np.testing.assert_array_equal(out.tokens[r], solo.tokens[0])
            np.testing.assert_allclose(out.logits[r], solo.logits[0], atol=3e-5)
            for side in (0, 1):
                np.testing.assert_array_equal(out.cache.tails[side].coded[:, r], solo.cache.tails[side].coded[:, 0])


def test_a_row_that_stops_is_left_as_it_is(lm):
    prompts, policy = [ids_of(30, 1), ids_of(47, 2)], method()
    cache = kvjax.compress(kvjax.prefill(lm, prompts), policy)
    free = kvjax.decode(lm, cache, policy, max_new_tokens=40, stop=())
    stop = int(free.tokens[0, 2])
    first = [int(np.argmax(np.append(row == stop, True))) + 1 for row in free.tokens]
    out = kvjax.decode(lm, cache, policy, max_new_tokens=40, stop=(stop,))
    for r, ids in enumerate(prompts):
        n = len(ids) + min(first[r], 40)
        found = [(int(t.coded[0, r, 0]), n - int(t.coded[0, r, 0])) for t in out.cache.tails]
        assert (*found[0], *found[1]) == counts(n, R)


# ---- Bytes

#: SmolLM2-135M: 30 layers of 3 KV heads, groups of 3, head dimension 64.
L, H, G, D = 30, 3, 3, 64


def random_prefill(n, dtype=jnp.bfloat16):
    """Random keys and values of SmolLM2's shape: what is allocated does not depend on what they say."""
    draw = np.random.default_rng(0)
    layer = jnp.asarray(draw.standard_normal((1, H, n, D), np.float32)).astype(dtype)
    config = toy_config(
        hidden_size=576, num_hidden_layers=L, num_attention_heads=H * G, num_key_value_heads=H, head_dim=D,
        max_position_embeddings=8192,
    )  # fmt: skip
    decoder, length = Decoder(llama.config(config)), jnp.asarray([n], jnp.int32)
    empty = kvjax.evidence.Evidence(data={}, length=length, rope=decoder.rope)
    row = PrefilledRow(
        ids=jnp.zeros(n, jnp.int32), length=length, k=(layer,) * L, v=(layer,) * L, evidence=(empty,) * L,
        logits=jnp.zeros(decoder.vocab),
    )  # fmt: skip
    return Prefilled(rows=(row,), needs=(), decoder=decoder)


def in_use(cache) -> int:
    """Bytes of live buffers that hold a code, a step, a minimum or an exact number of some token."""
    n, total = cache.lengths, 0
    for pool, tail in zip((cache.k, cache.v), cache.tails, strict=True):
        coded = np.asarray(tail.coded)
        for leaf in jax.tree.leaves(pool):
            page, row = cache.slots // leaf.shape[0], leaf.addressable_shards[0].data.nbytes // leaf.shape[0]
            total += int((coded // page).sum()) * row
        total += int((n - coded).sum()) * tail.rows.nbytes // (tail.coded.size * tail.rows.shape[3])
    return total


@pytest.mark.parametrize("n", [700, 4160, 8192])
def test_bytes_are_the_formulas(n):
    pre = random_prefill(n)
    full, cache = (kvjax.compress(pre, policy) for policy in (kvjax.methods.full(), kvjax.methods.kivi()))
    assert in_use(cache) == L * H * kivi_nbytes(n, D, 2)
    held = counted_leaves(cache)
    assert cache.nbytes == sum(x.addressable_shards[0].data.nbytes for x in held) and cache.host_nbytes == 0
    unused = L * H * (257 * D * 2 + 2 * 48)  # whole windows, and codes of slots that are exact still
    room = cache.slots - L * H * n
    assert in_use(cache) + 2 * cache.slots <= cache.nbytes <= in_use(cache) + unused + 50 * room + 2 * L * H * n + 128 * 96 * L * H
    if n == 8192:
        assert cache.nbytes <= 0.22 * full.nbytes


# ---- Crossings


@pytest.mark.parametrize("name", ["snapkv", "adakv", "expected_attention"])
def test_what_is_kept_is_paged_in_position_order(lm, pre, name):
    """Heads that keep different numbers of slots, each with a window of its own."""
    kept = policy_of(name)
    policy = kept.replace(encode=method().encode)
    cache = kvjax.compress(pre, policy)
    for layer in range(3):
        for h, pos in enumerate(cache.kept(layer)[0]):
            k, v = (np.asarray(x[layer])[0, h, pos] for x in (pre.rows[0].k, pre.rows[0].v))
            got = held(cache, policy.encode, layer, 0, h)
            want = Kivi(16, 4, 4, group_k=8, group_v=8, residual=R, held_k=got[0], held_v=got[1])
            want.extend(np.zeros((1, *k.shape)), k, v)
            np.testing.assert_allclose(got[0], want.keys(), atol=1e-5)
            np.testing.assert_allclose(got[1], want.values(), atol=1e-5)
    out = kvjax.decode(lm, cache, policy, max_new_tokens=30, stop=(), return_logits=True)
    exact = kvjax.decode(lm, kvjax.compress(pre, kept), kept, max_new_tokens=30, stop=(), return_logits=True)
    assert np.abs(out.logits[0, 1] - exact.logits[0, 1]).max() < 0.5 and jnp.isfinite(out.logits).all()
    for side, window in enumerate(policy.encode.windows):
        np.testing.assert_array_equal(out.cache.tails[side].coded, window.coded(out.cache.length))


def test_evicting_while_decoding_is_refused_before_tracing(lm, pre):
    with pytest.raises(ValueError, match="evicts slots one by one while decoding"):
        kvjax.compress(pre, policy_of("h2o").replace(encode=method().encode))


def test_pages_and_pivots_are_refused(lm, pre):
    with pytest.raises(ValueError, match="on the device"):
        kvjax.compress(pre, policy_of("quest").replace(encode=method().encode))
    with pytest.raises(ValueError, match="without windows"):
        kvjax.compress(pre, policy_of("heterocache", 0.75).replace(encode=method().encode))


def test_a_cache_of_another_storage_is_refused(lm, pre):
    policies = [kvjax.methods.full(), method(), method().replace(encode=method().encode.replace(sinks=2))]
    for mine in policies:
        for other in policies:
            if mine is not other:
                with pytest.raises(ValueError, match="compress with it"):
                    kvjax.decode(lm, kvjax.compress(pre, mine), other, max_new_tokens=2)


def test_more_bits_come_closer(lm, pre):
    full = kvjax.methods.full()
    want = kvjax.decode(lm, kvjax.compress(pre, full), full, max_new_tokens=2, stop=(), return_logits=True).logits[0, 1]
    errors = []
    for bits in (1, 2, 4, 8):
        out = kvjax.decode(lm, kvjax.compress(pre, method(bits)), method(bits), max_new_tokens=2, stop=(), return_logits=True)
        errors.append(float(np.abs(out.logits[0, 1] - want).max()))
    assert errors == sorted(errors, reverse=True) and errors[-1] < 0.02
