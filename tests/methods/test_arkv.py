"""ARKV on the toy model: its saw-tooth, which slots are exact, coded and gone by the transcription, rows, bytes."""

import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from tests.conftest import counted_leaves, ids_of
from tests.held import held
from tests.reference.arkv import cut, fp8, origin, quality
from tests.reference.softmax import softmax

HOW = dict(stop=(), return_logits=True)
C, W = 40, 8


def method(**changes):
    return kvjax.methods.arkv(**{"budget": C, "window": W, **changes})


def test_the_saw_tooth(lm):
    """64 steps: up to C, then a quarter of the past goes at once; nothing above C stands after a step."""
    policy = method()
    cache = kvjax.compress(kvjax.prefill(lm, ids_of(90), needs=policy), policy)
    assert (cache.lengths == C).all()
    want, seen = C, []
    for token in ids_of(64, 1):
        cache = kvjax.extend(lm, cache, [token], policy, pool_budget=64).cache
        want = want + 1 if want < C else W + (C + 1 - W) * 3 // 4
        seen.append(int(cache.lengths.max()))
        assert (cache.lengths == want).all()
    assert min(seen) == 32 and max(seen) == C


def test_a_merger_that_would_not_see_what_the_tiers_let_go_is_refused(lm):
    pre = kvjax.prefill(lm, ids_of(90), needs=method())
    with pytest.raises(ValueError, match="let slots go while decoding, which NearestKey would not see: use merge=Drop"):
        kvjax.compress(pre, method().replace(merge=kvjax.merge.NearestKey()))


def test_the_shares_are_those_of_the_transcription(lm):
    policy = method()
    pre = kvjax.prefill(lm, ids_of(90), needs=policy)
    oq = []
    for layer in range(3):
        k = np.asarray(pre.rows[0].k[layer], np.float64)[0, :, :90]
        q = np.asarray(pre.rows[0].evidence[layer].window_queries(W), np.float64)[0]
        z = np.einsum("hgwd,hnd->hgwn", q, k) / 4
        z = np.where(np.arange(90) <= 82 + np.arange(W)[:, None], z, -np.inf)
        oq.append(quality(softmax(z)[..., : 90 - W]))
    found = np.asarray(kvjax.compress(pre, policy).budget)[:, 0, 0]
    np.testing.assert_array_equal(found, np.maximum(origin(np.array(oq), C, W, 90), 1))


def test_a_cut_as_the_transcription_says(lm):
    """The first overflow: from the cache before it, and the attention of the token that makes it."""
    policy, first = method(), ids_of(1, 5)
    pre = kvjax.prefill(lm, ids_of(90), needs=policy)
    before = kvjax.compress(pre, policy)
    patient = policy.replace(encode=kvjax.encode.Stored(), when=kvjax.AfterPrefill())
    plain = kvjax.extend(lm, kvjax.compress(pre, patient), first, patient).cache
    after = kvjax.extend(lm, before, first, policy).cache
    for h in range(2):  # layer 0: its query is that of the token alone
        x = lm.decoder.embed(lm.params, jnp.asarray([first], jnp.int32))
        seen = {}

        def attend(inputs, seen=seen):
            seen["q"] = np.asarray(inputs.q, np.float64)[0]
            return jnp.zeros_like(inputs.q), None

        lm.decoder.layer(lm.params["layers"][0], x, jnp.asarray([[90]], jnp.int32), attend)
        k, v = (np.asarray(y, np.float64) for y in held(plain, patient.encode, 0, 0, h))
        pos = plain.kept(0)[0][h].astype(int)
        p = softmax(seen["q"][h, :, 0] @ k.T / 4).mean(0)
        stays, coded = cut(p, pos, np.zeros(len(pos), bool), 91, int(before.budget[0, 0, h]), W)
        np.testing.assert_array_equal(after.parts[0].kept(0)[0][h], pos[stays & ~coded])
        np.testing.assert_array_equal(after.parts[1].kept(0)[0][h], pos[coded])
        part = after.parts[1]
        start, n = int(part.start[0, 0, h]), int(part.length[0, 0, h])
        order = np.argsort(np.asarray(part.pos[start : start + n]))
        got = held(part, policy.encode.stores[1], 0, 0, h)
        np.testing.assert_allclose(got[0][order], fp8(k[coded]), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(got[1][order], fp8(v[coded]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("length", [1, 9, 30])
def test_a_prompt_that_fits_is_exact_until_it_overflows(lm, length):
    full, policy = kvjax.methods.full(), method()
    pre = kvjax.prefill(lm, ids_of(length), needs=[policy, full])
    got, want = (kvjax.decode(lm, kvjax.compress(pre, p), p, max_new_tokens=10, **HOW) for p in (policy, full))
    np.testing.assert_allclose(got.logits, want.logits, atol=2e-5)


def test_row_is_solo(lm):
    how = dict(max_new_tokens=16, pool_budget=64, **HOW)  # one program for all that are alone
    policy, prompts = method(), [ids_of(n, seed=n) for n in (60, 35, 1)]
    alone = [kvjax.compress(kvjax.prefill(lm, ids, needs=policy), policy) for ids in prompts]
    out = kvjax.decode(lm, kvjax.stack(alone), policy, **how)
    for r, cache in enumerate(alone):
        solo = kvjax.decode(lm, cache, policy, **how)
        np.testing.assert_array_equal(out.tokens[r], solo.tokens[0])
        np.testing.assert_allclose(out.logits[r], solo.logits[0], atol=5e-5)


def test_bytes_are_those_of_live_buffers(lm):
    policy = method()
    cache = kvjax.compress(kvjax.prefill(lm, ids_of(90), needs=policy), policy)
    cache = kvjax.extend(lm, cache, [3], policy).cache
    exact, coded = cache.parts
    assert exact.slot_nbytes == 2 * 16 * 4 + 2 and coded.slot_nbytes == 2 * (16 + 2) + 2
    leaves = counted_leaves(cache)
    assert cache.nbytes == sum(x.addressable_shards[0].data.nbytes for x in leaves)


def test_a_budget_inside_the_window_is_refused():
    for budget in (31, 0.5):
        with pytest.raises(ValueError, match="at least the window of 32"):
            kvjax.methods.arkv(budget=budget)
