"""ShadowKV against its NumPy transcription and the authors' numbers: chunks, factors, steps, bytes."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.evidence import RawKeys
from kvjax.retrieve.low_rank import away_tokens, chunk_means, factors, landmark_worth, outlier_chunks, rebuilt, shadow
from kvjax.retrieve.token_lists import top_tokens
from kvjax.types import size_class
from tests.conftest import ids_of, policy_of
from tests.methods import reading
from tests.reference import shadowkv as slow
from tests.reference.golden_methods import load

CHUNKS = dict(chunk=8, local=1, outliers=2)


def policy(tokens=24, rank=12, **changed):
    return kvjax.methods.shadowkv(**{"rank": rank, "tokens": tokens, **CHUNKS, **changed})


#: E23: chunks of two tokens.
KEYS = np.array([[(1, 0), (1, 0.2)], [(1, 0), (-0.2, 1)], [(0, 1), (0.1, 1)], [(1, 1), (0.9, 1)]], np.float32)
QUERIES = np.array([(2, 0), (0, 1)], np.float32)


def test_outliers_by_hand():
    keys = jnp.asarray(KEYS.reshape(1, 1, 8, 2))
    mean, cosine = chunk_means(keys, 2)
    np.testing.assert_allclose(mean[0, 0], [(1, 0.1), (0.4, 0.5), (0.05, 1), (0.95, 1)], atol=1e-6)
    np.testing.assert_allclose(cosine[0, 0], [0.9950, 0.6247, 0.9988, 0.9996], atol=5e-5)
    outlier, real = outlier_chunks(cosine, jnp.array([8]), size=2, local=0, many=1)
    np.testing.assert_array_equal(np.flatnonzero(outlier[0, 0]), [1])
    assert real.all()
    assert slow.parted(KEYS.reshape(8, 2).astype(float), 2, 0, 1)[:2] == ([1], [0, 2, 3])
    away = away_tokens(keys, jnp.array([8]), size=2, local=1, many=1)
    np.testing.assert_array_equal(away[0, 0], [1, 1, 0, 0, 1, 1, 0, 0])


def test_a_choice_by_hand():
    """The largest softmax of any head of the group; a mean over them would choose chunk 3."""
    marks = jnp.asarray(KEYS.mean(1)[[0, 2, 3]])[None, None]
    u = landmark_worth(jnp.asarray(QUERIES)[None, None], marks, jnp.array([[3]]), 1 / math.sqrt(2))
    np.testing.assert_allclose(u[0, 0], [0.4561, 0.3954, 0.4249], atol=5e-5)
    assert top_tokens(u, u > -1, jnp.array([[1]]), most=1)[0].item() == 0
    assert slow.chosen(QUERIES.astype(float), KEYS.mean(1)[[0, 2, 3]].astype(float), 1, 1 / math.sqrt(2)) == [0]


def test_the_authors_numbers():
    """Chunks, landmarks, outliers, the choice and the rebuilt keys; their logits are divided by sqrt(128) whatever d is."""
    z = load("shadowkv")
    k, raw, n = jnp.asarray(z["key_roped"]), jnp.asarray(z["key_pre_rope"]), jnp.array([140])
    size, local, many = int(z["chunk"]), int(z["local_chunk"]), int(z["outlier_chunks"])
    made = shadow(k, raw, n, size=size, local=local, many=many, rank=int(z["rank"]))
    np.testing.assert_array_equal(made.count, [[12, 12]])
    np.testing.assert_array_equal(made.ids[0, :, :12], z["landmark_chunk_idx"])
    np.testing.assert_allclose(made.landmarks[0, :, :12], z["landmarks"], atol=1e-6)
    outlier, real = outlier_chunks(chunk_means(k, size)[1], n, size=size, local=local, many=many)
    np.testing.assert_array_equal([np.flatnonzero(row) for row in outlier[0]], np.sort(z["outlier_chunk_idx"], -1))
    assert int(real[0, 0].sum()) == int(z["chunks"]) and 140 - int(z["chunks"]) * size == int(z["prefill_local"])
    q = jnp.asarray(z["query"]).reshape(1, 2, 2, 16)
    u = landmark_worth(q, made.landmarks, made.count, 1 / math.sqrt(128))
    chosen = top_tokens(u, u > 0, jnp.full((1, 2), int(z["sparse_budget"]) // size), most=5)[0]
    ids = jnp.take_along_axis(made.ids, chosen, -1)[0]
    np.testing.assert_array_equal(ids, z["selected_chunks_sorted"])
    tokens = (ids[..., None] * size + jnp.arange(size)).reshape(2, -1)
    np.testing.assert_array_equal(np.sort(tokens), np.sort(z["position_ids"][0]))
    whole = rebuilt(made.u, made.sv, jnp.broadcast_to(jnp.arange(140, dtype=jnp.int32), (1, 2, 140)))
    np.testing.assert_allclose(whole, z["lowrank_reconstruction"], atol=5e-4)
    for h in range(2):
        worst, rest, marks = slow.parted(np.asarray(k[0, h], float), size, local, many)
        assert (worst, rest) == (sorted(z["outlier_chunk_idx"][h].tolist()), z["landmark_chunk_idx"][h].tolist())
        picked = slow.chosen(np.asarray(q[0, h], float), marks, 5, 1 / math.sqrt(128))
        np.testing.assert_array_equal(np.array(rest)[picked], z["selected_chunks_sorted"][h])
    np.testing.assert_allclose(slow.low_rank(z["key_pre_rope"][0].astype(float), 12), z["lowrank_reconstruction"][0], atol=5e-4)


def test_a_rank_beyond_the_keys_is_padded():
    raw = jnp.asarray(np.random.default_rng(0).normal(size=(1, 2, 5, 4)).astype(np.float32))
    u, sv = factors(raw, jnp.arange(5)[None] < 4, 8)
    assert u.shape == (1, 5, 8) and sv.shape == (1, 2, 8, 4)
    back = rebuilt(u, sv, jnp.broadcast_to(jnp.arange(4, dtype=jnp.int32), (1, 2, 4)))
    np.testing.assert_allclose(back, raw[:, :, :4], atol=1e-5)
    np.testing.assert_allclose(u[0, 4], 0, atol=1e-6)


def test_steps_are_the_transcriptions(lm, pre):
    n, row = pre.lengths[0], pre.rows[0]
    turn = lambda x: np.asarray(lm.decoder.rope.rotate(jnp.asarray(x, jnp.float32), *lm.decoder.rope.cos_sin(jnp.arange(n))))  # noqa: E731
    keys = [turn(slow.low_rank(np.asarray(e.of(RawKeys()))[0, :, :n].astype(float), 12)).astype(float) for e in row.evidence]

    def rule(layer, inputs, k, v):
        q, known = np.asarray(inputs.q, np.float64)[0, :, :, 0], k.copy()
        lists = {}
        for h in range(2):
            worst, rest, marks = slow.parted(k[h, :n], 8, 1, 2)
            picked = [rest[i] for i in slow.chosen(q[h], marks, 3, 1 / 4)]
            tokens = np.concatenate([np.arange(c * 8, c * 8 + 8) for c in picked])
            known[h, tokens] = keys[layer][h, tokens]
            exact = [np.arange(c * 8, c * 8 + 8) for c in worst]
            lists[h] = np.concatenate([tokens, *exact, np.arange((n // 8 - 1) * 8, k.shape[1])])
        return reading.over_lists(q, known, v, lambda h, g: lists[h])

    reading.same_as_written_out(lm, pre, policy(), rule)


def test_full_rank_and_all_chunks_are_the_full_cache(lm, pre):
    reading.reads_everything(lm, pre, policy(1.0, rank=160))


def test_rows_are_what_they_are_alone(lm):
    reading.rows_are_solo(lm, policy(0.3))


def test_a_short_prompt_stays_whole(lm):
    chosen = policy(outliers=48)
    pre = kvjax.prefill(lm, ids_of(40), needs=chosen)
    reading.reads_everything(lm, pre, chosen, atol=1e-5)
    cache = kvjax.compress(pre, chosen)
    assert (cache.lengths == 40).all()
    longer = kvjax.compress(kvjax.prefill(lm, ids_of(90), needs=chosen), policy(outliers=2))
    both = kvjax.stack([cache, longer])
    assert jnp.isfinite(kvjax.decode(lm, both, policy(), max_new_tokens=3, stop=(), return_logits=True).logits).all()


def test_a_prompt_of_less_than_a_chunk(lm):
    """Padded to less than a chunk, too; alone and beside a longer one."""
    chosen = policy(chunk=128, local=0, outliers=1)
    short, longer = (kvjax.prefill(lm, ids_of(n), needs=chosen) for n in (10, 300))
    reading.reads_everything(lm, short, chosen, atol=1e-5)
    both = kvjax.stack([kvjax.compress(pre, chosen) for pre in (short, longer)])
    got = kvjax.decode(lm, both, chosen, max_new_tokens=24, stop=(), return_logits=True)
    np.testing.assert_allclose(got.logits[0], reading.decoded(lm, short, chosen, 24).logits[0], atol=1e-5)
    assert (got.cache.held[:, 1] == 324).all() and (got.cache.lengths[:, 1] < 324).all()


def test_bytes_are_where_they_are_said_to_be(lm, pre):
    """90 tokens: 10 chunks but for the last; two outliers a head, so 8 of them and no key of theirs are away."""
    rank, steps, away = 12, 5, 8 * 8
    cache = kvjax.compress(pre, policy())
    state, width = cache.retrieval, 96
    assert [x.sharding.memory_kind for x in state.away.stores] == ["pinned_host"]
    assert state.away.slot_nbytes * int(state.away.count.sum()) == 3 * 2 * away * 16 * 4
    assert cache.host_nbytes == size_class(3 * 2 * away) * 16 * 4
    assert (cache.lengths == 90 - away).all() and (cache.held == 90).all()
    shadows = [width * rank, 2 * rank * 16, 2 * (width // 8) * 16, 2 * (width // 8), 2]
    for mine in state.shadows:
        assert [x.size for x in (mine.u, mine.sv, mine.landmarks, mine.ids, mine.count)] == shadows
    plain = kvjax.compress(pre, policy_of("full")).numbered()
    others = sum(x.nbytes for x in (state.away.offset, state.away.count, state.wanted))
    others += 2 * 2 * 4  # two words of both counters
    assert cache.nbytes == 3 * sum(shadows) * 4 + others + cache.slots * cache.slot_nbytes + 4 * cache.start.nbytes
    assert cache.used_nbytes == plain.used_nbytes * (90 - away) // 90
    out = kvjax.decode(lm, cache, policy(), max_new_tokens=steps, stop=())
    np.testing.assert_array_equal(out.cache.retrieval.fetched_nbytes, [steps * 3 * 2 * 24 * 16 * 4])


@pytest.mark.parametrize("tokens, chunks", [(1, 1), (7, 1), (8, 1), (17, 2), (0.01, 1)])
def test_a_query_reads_whole_chunks_and_one_at_least(lm, pre, tokens, chunks):
    chosen = policy(tokens, chunk=8)
    assert kvjax.compress(pre, chosen).retrieval.wanted.tolist() == [chunks]


def test_refusals(lm, pre):
    for wrong, why in (({"rank": 0}, "at least 1"), ({"local": -1}, "0 or more"), ({"tokens": 1.5}, "share")):
        with pytest.raises(ValueError, match=why):
            policy(**wrong)
    with pytest.raises(ValueError, match="leave the budget at 1.0"):
        kvjax.compress(pre, policy().replace(budget=40))
    with pytest.raises(ValueError, match="compress it with this policy"):
        kvjax.decode(lm, kvjax.compress(pre, policy()), policy(chunk=4), max_new_tokens=2)
    with pytest.raises(ValueError, match="RawKeys"):
        kvjax.compress(kvjax.prefill(lm, ids_of(40), needs=policy_of("full")), policy())
