"""ZipCache: its classes and codes after a prompt and after blocks of new tokens, against the transcription; rows, bytes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.encode import Stored, Tiered
from kvjax.tiers import SalientBlocks
from kvjax.view import Ranking
from tests.conftest import counted_leaves, ids_of
from tests.held import held
from tests.methods.in_tiers import positions
from tests.reference.zipcache import classes, coded

HOW = dict(stop=(), return_logits=True)


def method(**changes):
    return kvjax.methods.zipcache(**{"interval": 10, **changes})


def test_classes_and_codes_of_a_prompt(lm):
    policy = method()
    pre = kvjax.prefill(lm, ids_of(90), needs=policy)
    cache, row = kvjax.compress(pre, policy), pre.rows[0]
    for layer in range(3):
        mass = np.asarray(row.evidence[layer].column_sums(), np.float64)[0, :, :90]
        salient = np.stack([classes(m / np.arange(90, 0, -1), 0.6) for m in mass])
        for part, mask, bits in ((1, salient, 4), (2, ~salient, 2)):
            at = [np.flatnonzero(x) for x in mask]
            k, v = (np.stack([np.asarray(x[layer], np.float32)[0, h, at[h]] for h in range(2)]) for x in (row.k, row.v))
            want = coded(k, v, bits)
            for h in range(2):
                np.testing.assert_array_equal(cache.parts[part].kept(layer)[0][h], at[h])
                got = held(cache.parts[part], policy.encode.stores[part], layer, 0, h)
                np.testing.assert_allclose(got[0], want[0][h], atol=2e-3)
                np.testing.assert_allclose(got[1], want[1][h], atol=2e-3)


@pytest.mark.parametrize("n, salient", [(2, 2), (4, 3), (5, 3), (11, 7), (33, 20), (100, 60)])
def test_what_is_not_salient_is_rounded_down(n, salient):
    """n - int(0.4 n)."""
    valid = jnp.ones((1, 1, 1, n), bool)
    pos = jnp.arange(n, dtype=jnp.int32)[None, None, None]
    ranking = Ranking(scores=pos.astype(jnp.float32), protected=~valid, valid=valid, pos=pos)
    tiers = SalientBlocks(share=0.6, interval=n + 10).of_prompt(ranking, jnp.asarray([n]))
    np.testing.assert_array_equal(tiers[0, 0, 0], [2] * (n - salient) + [1] * salient)
    assert SalientBlocks(share=0.6, interval=n).salient == salient


def test_blocks_of_what_follows(lm):
    """64 steps: six blocks of ten, six salient each; the newest four exact."""
    policy = method()
    pre = kvjax.prefill(lm, ids_of(30), needs=policy)
    out = kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=64, **HOW)
    lengths = [np.unique(part.length) for part in out.cache.parts]
    assert [int(x[0]) for x in lengths] == [4, 18, 12, 36, 24] and all(len(x) == 1 for x in lengths)
    assert (out.cache.lengths == 94).all() and jnp.isfinite(out.logits).all()
    for layer, h in np.ndindex(3, 2):
        assert sorted(positions(out.cache, layer, h)) == list(range(94))
        for block in range(6):
            mine = out.cache.parts[3].kept(layer)[0][h][6 * block : 6 * block + 6]
            assert ((30 + 10 * block <= mine) & (mine < 40 + 10 * block)).all()
    assert [part.kept(0)[0][0].tolist() for part in out.cache.parts[:1]] == [[90, 91, 92, 93]]


def test_a_block_is_ranked_by_the_newest_query_and_coded_as_a_block(lm):
    """Against the exact keys and values of the same tokens, which the full cache computes for the first block."""
    plain = method().replace(encode=Tiered((Stored(),) * 5, rule=SalientBlocks(share=0.6, interval=10)))
    policy = plain.replace(encode=Tiered((Stored(), Stored(), Stored(), *method().encode.stores[3:]), rule=plain.encode.rule))
    pre = kvjax.prefill(lm, ids_of(30), needs=policy)
    exact, ours = (kvjax.decode(lm, kvjax.compress(pre, p), p, max_new_tokens=10, stop=()).cache for p in (plain, policy))
    for layer in range(3):
        for part, bits in ((3, 4), (4, 2)):
            k, v = (np.stack(x) for x in zip(*(held(exact.parts[part], Stored(), layer, 0, h) for h in range(2)), strict=True))
            want = coded(k, v, bits)
            for h in range(2):
                np.testing.assert_array_equal(ours.parts[part].kept(layer)[0][h], exact.parts[part].kept(layer)[0][h])
                got = held(ours.parts[part], policy.encode.stores[part], layer, 0, h)
                np.testing.assert_allclose(got[0], want[0][h], atol=2e-3)
                np.testing.assert_allclose(got[1], want[1][h], atol=2e-3)


def test_a_text_of_fewer_tokens_than_a_block(lm):
    """The published block of 100 tokens: two pages of its 60 salient ones are more slots than regions are padded to."""
    policy = kvjax.methods.zipcache()
    cache = kvjax.compress(kvjax.prefill(lm, ids_of(20), needs=policy), policy)
    out = kvjax.decode(lm, cache, policy, max_new_tokens=6, **HOW)
    assert [int(part.length.max()) for part in out.cache.parts] == [6, 12, 8, 0, 0] and jnp.isfinite(out.logits).all()


@pytest.mark.parametrize("length", [1, 33])
def test_with_lossless_tiers_it_is_the_full_cache(lm, length):
    full = kvjax.methods.full()
    policy = method().replace(encode=Tiered((Stored(),) * 5, rule=SalientBlocks(share=0.6, interval=10)))
    pre = kvjax.prefill(lm, ids_of(length), needs=[policy, full])
    got, want = (kvjax.decode(lm, kvjax.compress(pre, p), p, max_new_tokens=24, **HOW) for p in (policy, full))
    np.testing.assert_allclose(got.logits, want.logits, atol=2e-5)


def test_row_is_solo(lm):
    how = dict(max_new_tokens=16, pool_budget=64, **HOW)  # one program for all that are alone
    policy, prompts = method(), [ids_of(n, seed=n) for n in (60, 1, 23)]
    alone = [kvjax.compress(kvjax.prefill(lm, ids, needs=policy), policy) for ids in prompts]
    batch = kvjax.decode(lm, kvjax.compress(kvjax.prefill(lm, prompts, needs=policy), policy), policy, **how)
    together = kvjax.decode(lm, kvjax.stack(alone), policy, **how)
    for r, cache in enumerate(alone):
        solo = kvjax.decode(lm, cache, policy, **how)
        for out in (batch, together):
            np.testing.assert_array_equal(out.tokens[r], solo.tokens[0])
            np.testing.assert_allclose(out.logits[r], solo.logits[0], atol=1e-4)


def test_the_bytes_are_the_classes(lm):
    policy = method()
    cache = kvjax.compress(kvjax.prefill(lm, ids_of(300), needs=policy), policy)
    new, high, low, *blocks = cache.parts
    assert [int(part.length.max()) for part in cache.parts] == [0, 180, 120, 0, 0]
    # keys 4 bits a number; values as many, and a step and a minimum of two bytes; a position
    assert high.slot_nbytes == 8 + (8 + 4) + 2 and low.slot_nbytes == 4 + (4 + 4) + 2
    assert sum(x.nbytes for x in jax.tree.leaves((high.fitted, low.fitted))) == 2 * 6 * 16 * 3 * 2
    leaves = counted_leaves(cache)
    assert cache.nbytes == sum(x.addressable_shards[0].data.nbytes for x in leaves)


def test_a_class_that_is_never_filled_is_refused():
    for share in (0.95, 1.0, 0.0):
        with pytest.raises(ValueError, match="needs both classes"):
            kvjax.methods.zipcache(salient=share, interval=10)
