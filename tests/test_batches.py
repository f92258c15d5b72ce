"""Row = solo: a row of a batch keeps the slots and gives the tokens it gives alone."""

import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.codec import AsIs
from kvjax.encode.parted import Parted
from tests.conftest import everything, ids_of, policy_of, prepared
from tests.held import stored_apart

#: One token is a prompt, too.
LENGTHS = [60, 1, 41, 130, 17]


@pytest.fixture(scope="module")
def read(lm):
    """The prompts beside each other and alone, with what any method reads of them; anew for one that reads otherwise."""
    prompts = [ids_of(n, seed=n) for n in LENGTHS]
    shared = [kvjax.prefill(lm, ids, needs=everything()) for ids in (prompts, *prompts)]

    def of(policy):
        if policy.attention == kvjax.CausalAttention() and not kvjax.evidence.missing(shared[0].needs, policy.needs):
            return shared
        return [kvjax.prefill(lm, ids, needs=policy) for ids in (prompts, *prompts)]

    return of


#: One of each kind; the others run with the slow tests.
QUICK = ("full", "snapkv", "adakv", "h2o", "compresskv")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in kvjax.methods.names()])
def test_row_is_solo(lm, read, name):
    policy = policy_of(name, 0.4)
    rows, *solo = read(policy)
    batch = kvjax.compress(prepared(lm, rows, name), policy)
    together = kvjax.decode(lm, batch, policy, max_new_tokens=10, stop=(), return_logits=True)
    for r, pre in enumerate(solo):
        cache = kvjax.compress(prepared(lm, pre, name), policy, pool_budget=64)
        alone = kvjax.decode(lm, cache, policy, max_new_tokens=10, stop=(), return_logits=True, pool_budget=64)
        for layer in range(3):
            for h in range(2):
                np.testing.assert_array_equal(batch.kept(layer)[r][h], cache.kept(layer)[0][h])
                np.testing.assert_array_equal(together.cache.kept(layer)[r][h], alone.cache.kept(layer)[0][h])
        np.testing.assert_array_equal(together.tokens[r], alone.tokens[0])
        assert np.isfinite(alone.logits).all()
        if not np.allclose(together.logits[r], alone.logits[0], atol=3e-5):
            assert coded_while_decoding(policy) and stored_apart(together.cache, r, alone.cache, policy.encode)
            np.testing.assert_allclose(together.logits[r], alone.logits[0], atol=1e-3)


def coded_while_decoding(policy) -> bool:
    """Whether what is decoded goes into codes with float16 scales, of which one at a tie may go either way."""
    layers = [policy.encode.at(layer) for layer in range(3)]
    stores = [store for own in layers for store in (own.stores if isinstance(own, Parted) else [getattr(own, "store", own)])]
    return any(codec != AsIs() for store in stores for codec in store.codecs)


def test_stacked_caches_decode_as_alone(lm, pre):
    policies = [policy_of(n, b) for n, b in [("snapkv", 20), ("adakv", 60), ("keydiff", 33), ("full", 1.0)]]
    caches = [kvjax.compress(pre, p) for p in policies]
    together = kvjax.decode(lm, kvjax.stack(caches), policies[0], max_new_tokens=8, stop=())
    for r, (policy, cache) in enumerate(zip(policies, caches, strict=True)):
        np.testing.assert_array_equal(together.tokens[r], kvjax.decode(lm, cache, policy, max_new_tokens=8, stop=()).tokens[0])


def test_a_row_that_stops_leaves_the_others_alone(lm):
    prompts, full = [ids_of(60, 1), ids_of(75, 2)], kvjax.methods.full()
    free = kvjax.generate(lm, prompts, full, max_new_tokens=12, stop=())
    stop = int(free.tokens[0, 3])
    first = [int(np.argmax(np.append(row == stop, True))) for row in free.tokens]
    out = kvjax.generate(lm, prompts, full, max_new_tokens=12, stop=(stop,))
    for row in range(2):
        n = min(first[row] + 1, 12)
        assert out.lengths[row] == n
        np.testing.assert_array_equal(out.tokens[row, :n], free.tokens[row, :n])
        assert (out.tokens[row, n:] == stop).all()
        assert int(out.cache.position[row]) == len(prompts[row]) + n


def test_extend_reads_rows_of_different_lengths(lm):
    prompts, full = [ids_of(50, 1), ids_of(33, 2)], kvjax.methods.full()
    more = [ids_of(20, 3), ids_of(5, 4)]
    cache = kvjax.compress(kvjax.prefill(lm, prompts), full)
    read = kvjax.extend(lm, cache, more, full, return_logits=True)
    for r in range(2):
        whole = kvjax.prefill(lm, prompts[r] + more[r], all_logits=True).rows[0]
        n = len(prompts[r])
        np.testing.assert_allclose(
            read.logits[r, : len(more[r])], whole.all_logits[n : n + len(more[r])], atol=3e-5
        )  # fmt: skip
        np.testing.assert_allclose(read.cache.logits[r], whole.logits, atol=3e-5)


def test_extend_in_blocks_is_extend_at_once(lm, pre):
    policy = policy_of("snapkv")
    cache, ids = kvjax.compress(pre, policy), ids_of(37, 9)
    whole = kvjax.extend(lm, cache, ids, policy, return_logits=True)
    parts = kvjax.extend(lm, cache, ids, policy, return_logits=True, block=8)
    np.testing.assert_allclose(whole.logits, parts.logits, atol=3e-5)
    np.testing.assert_array_equal(whole.cache.lengths, parts.cache.lengths)


def test_chunked_prefill_is_prefill(lm):
    prompts = [ids_of(200, 1), ids_of(70, 2)]
    whole, parts = kvjax.prefill(lm, prompts), kvjax.prefill(lm, prompts, chunk=64)
    for a, b in zip(whole.rows, parts.rows, strict=True):
        np.testing.assert_allclose(a.logits, b.logits, atol=3e-5)
        n = int(a.length[0])
        for layer in range(3):
            np.testing.assert_allclose(a.k[layer][:, :, :n], b.k[layer][:, :, :n], atol=3e-5)
            seen, other = a.evidence[layer], b.evidence[layer]
            np.testing.assert_allclose(seen.column_sums()[..., :n], other.column_sums()[..., :n], atol=1e-4)
            np.testing.assert_allclose(seen.window_queries(64), other.window_queries(64), atol=3e-5)
            np.testing.assert_allclose(seen.moments(4).covariance(), other.moments(4).covariance(), atol=1e-3)
            assert (seen.length == other.length).all()


def test_padding_holds_nothing_back(lm):
    """What stands in a prompt's padding cannot matter: every bucketed prompt equals itself in a larger bucket."""
    ids = ids_of(65, 5)
    small, large = kvjax.prefill(lm, ids), kvjax.prefill(lm, ids, chunk=128)
    for layer in range(3):
        a, b = small.rows[0].evidence[layer], large.rows[0].evidence[layer]
        np.testing.assert_allclose(a.column_sums()[..., :65], b.column_sums()[..., :65], atol=1e-4)
        assert jnp.abs(a.column_sums()[..., 65:]).max() == 0
