"""HeteroCache end to end: the transcription over a decode, arrival of what is fetched, rows, programs, bytes."""

import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.encode import AsIs, ByCallback, Cast, OnDevice, OnHost, Stored
from kvjax.methods.heterocache import heterocache
from kvjax.retrieve import FullAttention
from kvjax.retrieve.clusters import Clusters
from kvjax.retrieve.drift import PivotRefresh, Sliding, Tumbling
from tests.artefacts import toy
from tests.conftest import compilations, ids_of
from tests.reference import heterocache as hc
from tests.reference.heterocache_decode import Decoding

ARTEFACT = toy("heterocache")
PIVOTS, SATELLITES = [(0, 0), (2, 1)], [(0, 1), (2, 0)]


def policy_with(theta=0.5, **how):
    return heterocache(budget=how.pop("budget", 0.6), artefact=ARTEFACT, theta=theta, **how)


#: Pools of one size, so that most tests run one program: 17 to 32 tokens decoded, or any number fed one by one.
HOW = dict(stop=(), return_logits=True, pool_budget=128)


def fed(lm, cache, tokens, policy):
    return kvjax.extend(lm, cache, tokens, policy, return_logits=True, pool_budget=192 - len(tokens))


def decoded(lm, pre, policy, steps=20):
    return kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=steps, **HOW)


def test_lengths_are_those_of_the_transcription(pre):
    ratio = ARTEFACT.tables["alloc_ratio"]
    cache = kvjax.compress(pre, policy_with())
    base = (54 * 6 - 2 * 90) // 4
    want = np.where(ratio < 0, 90, 0)
    want[ratio >= 0] = hc.lengths_floor(base, ratio[ratio >= 0].astype(float), 90)
    np.testing.assert_array_equal(cache.lengths[:, 0], want)
    assert int(cache.retrieval.base[0]) == base
    even = kvjax.compress(pre, policy_with(even=True))
    np.testing.assert_array_equal(even.lengths[:, 0], np.where(ratio < 0, 90, base))


def test_theta_zero_is_without_retrieval_to_the_bit(lm, pre):
    policy = policy_with(theta=0.0)
    got, want = decoded(lm, pre, policy), decoded(lm, pre, policy.replace(retrieve=FullAttention()))
    np.testing.assert_array_equal(got.logits, want.logits)
    assert int(got.cache.retrieval.refreshes.sum()) == 0 and int(got.cache.retrieval.fetched.total.sum()) == 0
    assert int(got.cache.retrieval.windows[0]) == 4 and jnp.isfinite(got.cache.retrieval.trace[:, :, :4]).all()


def test_theta_above_one_fetches_every_window(lm, pre):
    state = decoded(lm, pre, policy_with(theta=1.5), steps=21).cache.retrieval
    assert (state.refreshes == 4).all() and not state.pending.any()
    assert int(state.fetched.total[0]) == 4 * int(state.room.sum())
    assert int(state.fetched_nbytes[0]) == 2 * 16 * 4 * int(state.fetched.total[0])


def simulate(lm, pre, tokens, *, base, theta, w):
    """Logits after each token and the simulated heads."""
    row, n, layers = pre.rows[0], pre.lengths[0], range(lm.decoder.layers)
    array = lambda x: np.asarray(x, np.float64)  # noqa: E731
    k, v = (np.stack([array(x[layer][0, :, :n]) for layer in layers]) for x in (row.k, row.v))
    q = np.stack([array(row.evidence[layer].window_queries(1)[0, :, :, 0]) for layer in layers])
    heads, logits = Decoding(q, k, v, ARTEFACT.tables, base=base, theta=theta, w=w), []
    for t, token in enumerate(tokens):
        x, at = lm.decoder.embed(lm.params, jnp.asarray([[token]], jnp.int32)), jnp.asarray([[n + t]], jnp.int32)
        for layer, weights in enumerate(lm.params["layers"]):

            def attend(h, layer=layer):
                out = heads.attend(layer, *(np.asarray(y) for y in (h.q[0, :, :, 0], h.k[0, :, 0], h.v[0, :, 0])))
                return jnp.asarray(out[None, :, :, None], jnp.float32), None

            x, _ = lm.decoder.layer(weights, x, at, attend)
        heads.end()
        logits.append(np.asarray(lm.decoder.unembed(lm.params, x)[0, 0]))
    return np.stack(logits), heads


@pytest.mark.parametrize(("theta", "w"), [(0.45, 5), (1.5, 1)])
def test_decoding_is_the_transcription(lm, pre, theta, w):
    policy, tokens = policy_with(theta=theta, w=w), ids_of(64, 9)
    got = fed(lm, kvjax.compress(pre, policy), tokens, policy)
    want, heads = simulate(lm, pre, tokens, base=36, theta=theta, w=w)
    np.testing.assert_allclose(got.logits[0], want, atol=1e-5)
    state, windows = got.cache.retrieval, 64 // w
    for p, pivot in enumerate(PIVOTS):
        medians = heads.monitors[pivot].medians
        drifts = [m < theta for m in medians]
        assert len(drifts) == windows and any(drifts) and (theta > 1 or not all(drifts)), medians
        arrived = sum(drifts[: 63 // w])
        assert int(state.refreshes[0, p]) == arrived and int(state.windows[0]) == windows
        kept = {int(windows - i - 1) for i in range(min(windows, 32))}
        np.testing.assert_allclose([state.trace[0, p, i % 32] for i in kept], [medians[i] for i in kept], atol=1e-6)
    for at in np.ndindex(3, 2):
        np.testing.assert_array_equal(got.cache.kept(at[0])[0][at[1]], [*heads.heads[at].held, *range(90, 154)])


def test_what_a_window_asks_for_is_read_two_steps_later(lm, pre):
    policy, tokens = policy_with(theta=1.5), ids_of(9, 4)
    still = policy.replace(retrieve=FullAttention())
    cache, other, moved, differs = kvjax.compress(pre, policy), kvjax.compress(pre, still), [], []
    before = [list(cache.kept(layer)[0][h]) for layer, h in SATELLITES]
    for t, token in enumerate(tokens):
        cache, other = (fed(lm, c, [token], p).cache for c, p in ((cache, policy), (other, still)))
        now = [[i for i in cache.kept(layer)[0][h] if i < 90] for layer, h in SATELLITES]
        moved.append(now != before)
        differs.append(bool((cache.logits != other.logits).any()))
        assert bool(cache.retrieval.pending.any()) == (t == 4)
    assert moved == [False] * 5 + [True] * 4 and differs == [False] * 6 + [True] * 3


def test_fetched_slots_hold_the_tokens_they_name(lm, pre):
    cache = decoded(lm, pre, policy_with(theta=1.5), steps=23).cache
    for layer, h in SATELLITES:
        start, room = int(cache.start[layer, 0, h]), int(cache.retrieval.room[0, SATELLITES.index((layer, h))])
        pos = np.asarray(cache.pos[start : start + room])
        assert (np.diff(pos.astype(int)) > 0).all()
        np.testing.assert_array_equal(cache.k[start : start + room], pre.rows[0].k[layer][0, h, pos])
        np.testing.assert_array_equal(cache.v[start : start + room], pre.rows[0].v[layer][0, h, pos])


@pytest.mark.parametrize("budget", [90, 1000, 1.0])
def test_the_whole_prompt_is_the_full_cache_to_the_bit(lm, pre, budget):
    got = decoded(lm, pre, policy_with(theta=1.5, budget=budget))
    want = decoded(lm, pre, kvjax.methods.full())
    np.testing.assert_array_equal(got.logits, want.logits)
    assert int(got.cache.retrieval.refreshes.sum()) == 0


@pytest.mark.slow
def test_rows_decide_for_themselves(lm):
    prompts, policy = [ids_of(n, seed=n) for n in (90, 3, 41, 130, 17)], policy_with(theta=0.45, w=3)
    run = lambda ids: decoded(lm, kvjax.prefill(lm, ids), policy, steps=16)  # noqa: E731
    batch = run(prompts)
    states = batch.cache.retrieval
    for r, ids in enumerate(prompts):
        solo = run(ids)
        np.testing.assert_array_equal(batch.tokens[r], solo.tokens[0])
        np.testing.assert_allclose(batch.logits[r], solo.logits[0], atol=3e-5)
        np.testing.assert_array_equal(states.refreshes[r], solo.cache.retrieval.refreshes[0])
        np.testing.assert_allclose(states.trace[r], solo.cache.retrieval.trace[0], atol=1e-6)
    assert len({int(x) for x in states.refreshes.sum(1)}) > 1


@pytest.mark.slow
def test_stacked_caches_decode_as_alone(lm):
    policy = policy_with(theta=1.5)
    caches = [kvjax.compress(kvjax.prefill(lm, ids_of(n, n)), policy_with(budget=b)) for n, b in ((90, 0.6), (200, 0.7))]
    run = lambda c: kvjax.decode(lm, c, policy, max_new_tokens=14, stop=(), return_logits=True)  # noqa: E731
    together = run(kvjax.stack(caches))
    for r, cache in enumerate(caches):
        np.testing.assert_allclose(together.logits[r], run(cache).logits[0], atol=3e-5)
    assert (together.cache.retrieval.refreshes == 2).all()


def test_numbers_never_recompile(lm):
    def run(theta, budget, seed):
        policy = policy_with(theta=theta, budget=budget)
        cache = kvjax.compress(kvjax.prefill(lm, ids_of(140, seed)), policy, pool_budget=0.9)
        return kvjax.decode(lm, cache, policy, max_new_tokens=12, stop=(), pool_budget=0.9)

    run(0.5, 0.6, 1)
    with compilations() as seen:
        for theta, budget, seed in ((0.0, 0.5, 1), (1.5, 0.6, 2), (0.8, 100, 3), (1.5, 0.9, 4)):
            run(theta, budget, seed)
    assert seen == []


@pytest.mark.parametrize("encode", [Stored(placement=OnHost()), Stored(keys=Cast("bfloat16"), values=Cast("bfloat16"))], ids=repr)
def test_encoders(lm, pre, encode):
    policy = policy_with(theta=1.5).replace(encode=encode)
    got, want = decoded(lm, pre, policy, 22), decoded(lm, pre, policy_with(theta=1.5), 22)
    np.testing.assert_allclose(got.logits[:, :4], want.logits[:, :4], atol=2e-5 if encode.keys == AsIs() else 0.3)
    assert (got.cache.retrieval.refreshes == 4).all()


def test_over_codes_what_is_fetched_is_coded(lm, pre):
    encode = kvjax.methods.hcattention(toy("hcattention")).encode
    policy = policy_with(theta=1.5).replace(encode=encode)
    cache = decoded(lm, pre, policy, 22).cache
    for (layer, h), room in zip(SATELLITES, cache.retrieval.room[0].tolist(), strict=True):
        start = int(cache.start[layer, 0, h])
        pos = np.asarray(cache.pos[start : start + room])
        want = encode.keys.at(layer).encode(pre.rows[0].k[layer])[0, h, pos]
        np.testing.assert_array_equal(cache.k[start : start + room], want)


@pytest.mark.parametrize("host", [OnDevice(), ByCallback()], ids=repr)
def test_homes_of_the_copies(lm, pre, host):
    want = decoded(lm, pre, policy_with(theta=1.5), 22)
    policy = policy_with(theta=1.5, host=host)
    if isinstance(host, ByCallback):
        policy = policy.replace(encode=Stored(placement=ByCallback()))
    got = decoded(lm, pre, policy, 22)
    np.testing.assert_allclose(got.logits, want.logits, atol=2e-5)
    assert (got.cache.retrieval.refreshes == want.cache.retrieval.refreshes).all()


def test_the_satellites_prompts_are_shared_by_caches_and_never_copied(lm, pre):
    policy = policy_with(theta=1.5)
    cache = kvjax.compress(pre, policy)
    first = kvjax.decode(lm, cache, policy, max_new_tokens=22, **HOW)
    longer = fed(lm, first.cache, ids_of(3), policy).cache
    for later in (first.cache, longer):
        assert later.retrieval.k is cache.retrieval.k and later.retrieval.v is cache.retrieval.v
    again = kvjax.decode(lm, cache, policy, max_new_tokens=22, **HOW)
    np.testing.assert_array_equal(again.tokens, first.tokens)


def test_two_kinds_of_host_memory_are_refused(pre):
    with pytest.raises(ValueError, match="the same home"):
        kvjax.compress(pre, policy_with().replace(encode=Stored(placement=ByCallback())))


def test_bytes(lm, pre):
    cache = kvjax.compress(pre, policy_with())
    d, itemsize, n, state = 16, 4, 90, cache.retrieval
    host = 2 * d * itemsize * 2 * n
    assert host <= cache.host_nbytes <= host * 33 / 32 + 64 * 2 * d * itemsize
    of_set = 96 // 8  # a bit a prompt slot
    sets = of_set * (2 * (5 + 1) + 2)  # of two pivots what w queries chose and the reference, of two satellites what is fetched
    assert (state.chosen.nbytes, state.reference.nbytes, state.asked.nbytes) == (10 * of_set, 2 * of_set, 2 * of_set)
    assert sets <= 4 * 2 * int(state.base[0])  # the paper's I_ref: indices of four bytes
    without = kvjax.compress(pre, policy_with().replace(retrieve=FullAttention()))
    small = 4 * (2 * 2 + 3 * 2 + 2 + 1 + 1 + 2 + 2 + 2 + 1 + 2 * 32) + 2
    assert cache.nbytes == without.nbytes + sets + small and without.host_nbytes == 0


def test_satellites_hold_their_whole_prompt_on_the_host(lm, pre):
    out = decoded(lm, pre, policy_with(theta=1.5))
    for cache, new in ((kvjax.compress(pre, policy_with()), 0), (out.cache, 20)):
        for at in np.ndindex(3, 2):
            away = 90 + new if at in SATELLITES else cache.lengths[at[0], 0, at[1]]
            assert cache.held[at[0], 0, at[1]] == away >= cache.lengths[at[0], 0, at[1]]
    assert (out.cache.held > out.cache.lengths).sum() == 2
    both = kvjax.stack([out.cache, out.cache])
    np.testing.assert_array_equal(both.held, np.repeat(out.cache.held, 2, 1))


def test_a_sliding_window_judges_every_step(lm, pre):
    state = decoded(lm, pre, policy_with(theta=1.5, window=Sliding()), steps=12).cache.retrieval
    assert int(state.windows[0]) == 8 and (state.refreshes == 7).all() and state.pending.all()


def test_fewer_steps_than_a_window_never_fetch(lm, pre):
    state = decoded(lm, pre, policy_with(theta=1.5), steps=4).cache.retrieval
    assert not state.pending.any() and int(state.windows[0]) == 0 and jnp.isnan(state.trace).all()


def test_no_base_length_no_monitoring(lm):
    short = kvjax.prefill(lm, ids_of(3, 1))
    policy = policy_with(theta=1.5, budget=2)
    cache = kvjax.compress(short, policy)
    assert int(cache.retrieval.base[0]) == 1
    policy = PivotRefresh(Clusters.of(ARTEFACT.tables["role"], ARTEFACT.tables["cluster"]), theta=1.5)
    state = decoded(lm, short, kvjax.Policy(retrieve=policy, budget=1), 12).cache.retrieval
    assert int(state.base[0]) == 1 and int(state.refreshes.sum()) == 0


def test_a_model_without_clusters_is_left_alone(lm, pre):
    retrieve = PivotRefresh(Clusters.of(np.full((3, 2), 1), np.full((3, 2), -1)))
    policy = kvjax.Policy(retrieve=retrieve, budget=40)
    got, want = decoded(lm, pre, policy), decoded(lm, pre, policy.replace(retrieve=FullAttention()))
    np.testing.assert_array_equal(got.logits, want.logits)
    assert got.cache.retrieval == () and got.cache.host_nbytes == 0


def test_what_does_not_fit_is_refused(lm, pre):
    with pytest.raises(ValueError, match="smallest feasible budget is 31 slots"):
        kvjax.compress(pre, policy_with(budget=30))
    with pytest.raises(ValueError, match="clusters of"):
        kvjax.compress(pre, kvjax.Policy(retrieve=PivotRefresh(Clusters.of([[1, 1]], [[-1, -1]]))))
    with pytest.raises(ValueError, match="is no pivot"):
        Clusters.of([[4, 1]], [[1, 1]])
    with pytest.raises(ValueError, match="at least 1 query"):
        policy_with(w=0)
    evicting = policy_with().replace(when=kvjax.Every(4))
    with pytest.raises(ValueError, match="AfterPrefill"):
        decoded(lm, pre, evicting, 4)
    other = kvjax.compress(pre, policy_with().replace(retrieve=FullAttention()))
    with pytest.raises(ValueError, match="compress it with this policy"):
        kvjax.decode(lm, other, policy_with(), max_new_tokens=4)


def test_equal_policies_are_equal():
    one, two = policy_with(), policy_with()
    assert one.retrieve == two.retrieve and hash(one.retrieve.clusters) == hash(two.retrieve.clusters)
    assert one.retrieve != policy_with(window=Sliding()).retrieve and one.retrieve.window == Tumbling()
