"""NEO and FastDecode: attention split between device and host is the full attention, row by row; what lies where."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.join import joined
from kvjax.placement.host_attention import host_attention, to_host
from tests.conftest import compilations, ids_of
from tests.reference.softmax import softmax

PROMPTS, STEPS = [ids_of(90, 1), ids_of(30, 2), ids_of(70, 3)], 64


@pytest.fixture(scope="module")
def prompts(lm):
    return kvjax.prefill(lm, PROMPTS)


@pytest.fixture(scope="module")
def full(lm, prompts):
    policy = kvjax.methods.full()
    return kvjax.decode(lm, kvjax.compress(prompts, policy), policy, max_new_tokens=STEPS, stop=(), return_logits=True)


@pytest.mark.parametrize("policy", [
    kvjax.methods.fastdecode(), kvjax.methods.fastdecode(16), kvjax.methods.neo(longest=40), kvjax.methods.neo(longest=1000),
], ids=["all rows", "a recent window here", "the long rows", "no row"])  # fmt: skip
def test_64_steps_are_those_of_full_attention(lm, prompts, full, policy):
    out = kvjax.decode(lm, kvjax.compress(prompts, policy), policy, max_new_tokens=STEPS, stop=(), return_logits=True)
    np.testing.assert_array_equal(out.tokens, full.tokens)
    np.testing.assert_allclose(out.logits, full.logits, atol=1e-4)


def test_what_lies_where(prompts):
    cache = kvjax.compress(prompts, kvjax.methods.neo(longest=40))
    assert cache.lengths[:, :, 0].tolist() == 3 * [[1, 30, 1]]
    assert cache.retrieval.row.tolist() == [0, 2]
    part = cache.retrieval.parts[0]
    assert all(x.sharding.memory_kind == "pinned_host" for x in part)
    assert part.held.sum((1, 2)).tolist() == [2 * 89, 2 * 69]
    assert cache.held[:, :, 0].tolist() == 3 * [[90, 30, 70]]
    everything = kvjax.compress(prompts, kvjax.methods.full())
    assert cache.nbytes < everything.nbytes and cache.host_nbytes >= 2 * 3 * 2 * (90 + 70) * 16 * 4
    assert cache.held[:, :, 0].tolist() == 3 * [[90, 30, 70]]
    none = kvjax.compress(prompts, kvjax.methods.neo(longest=90))
    assert none.retrieval.parts == () and (none.held == none.lengths).all()


def test_what_another_method_cuts_is_read_from_the_host(lm, prompts, full):
    policy = kvjax.methods.snapkv(budget=20, window=8).replace(retrieve=kvjax.retrieve.HostRows())
    out = kvjax.decode(lm, kvjax.compress(prompts, policy), policy, max_new_tokens=8, stop=(), return_logits=True)
    np.testing.assert_allclose(out.logits, full.logits[:, :8], atol=1e-4)


def test_known_tokens_at_once_and_caches_stacked(lm, prompts, full):
    policy = kvjax.methods.fastdecode()
    alone = [kvjax.compress(kvjax.prefill(lm, ids), policy) for ids in PROMPTS]
    cache = kvjax.stack(alone)
    read = kvjax.extend(lm, cache, full.tokens[:, :20].tolist(), policy, return_logits=True)
    np.testing.assert_allclose(read.logits[:, :-1], full.logits[:, 1:20], atol=1e-4)


def test_parts_and_their_join_against_one_softmax():
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=s).astype(np.float32) for s in ((2, 2, 3, 2, 8), (2, 2, 9, 8), (2, 2, 9, 8)))
    here = rng.random((2, 2, 9)) < 0.5
    now = jnp.full((2, 2), 9)
    parts = [host_attention(to_host(*map(jnp.asarray, (k, v, held))), jnp.asarray(q), now) for held in (here, ~here)]
    out, lse = joined(parts)
    z = np.einsum("bhgtd,bhnd->bhgtn", q, k) / np.sqrt(8)
    np.testing.assert_allclose(out, np.einsum("bhgtn,bhnd->bhgtd", softmax(z), v), atol=1e-5)
    np.testing.assert_allclose(lse, np.log(np.exp(z).sum(-1)), atol=1e-5)
    near = host_attention(to_host(*map(jnp.asarray, (k, v, np.ones_like(here)))), jnp.asarray(q), now, window=4)
    z[..., :6] = -np.inf
    np.testing.assert_allclose(near[0], np.einsum("bhgtn,bhnd->bhgtd", softmax(z), v), atol=1e-5)
    nothing = host_attention(to_host(*map(jnp.asarray, (k, v, np.zeros_like(here)))), jnp.asarray(q), now)
    assert (nothing[0] == 0).all() and (nothing[1] == -jnp.inf).all()
    np.testing.assert_allclose(joined([parts[0], nothing])[0], parts[0][0], atol=1e-6)


@pytest.mark.parametrize(("dtype", "window"), [("float32", None), ("float32", 40), ("bfloat16", None)])
def test_no_bit_of_a_row_depends_on_the_others(dtype, window):
    """A row beside longer ones, which fill it up to their length."""
    rng = np.random.default_rng(1)
    k, v, q = (rng.normal(size=size) for size in ((1, 2, 300, 64), (1, 2, 300, 64), (1, 2, 3, 1, 64)))
    held, now = rng.random((1, 2, 300)) < 0.7, jnp.full((1, 1), 300)

    def attended(rows, slots):
        def wide(x):
            return jnp.pad(jnp.asarray(x), ((0, rows - 1), (0, 0), (0, slots - x.shape[2])) + ((0, 0),) * (x.ndim - 3))

        part = to_host(wide(k).astype(dtype), wide(v).astype(dtype), wide(held))
        queries = jnp.concatenate([jnp.asarray(q, dtype)] * rows)
        return jax.jit(host_attention, static_argnums=3)(part, queries, jnp.concatenate([now] * rows), window)

    alone = attended(1, 300)
    for rows, slots in ((1, 330), (2, 1024), (3, 4096)):
        beside = attended(rows, slots)
        np.testing.assert_array_equal(beside[0][:1], alone[0])
        np.testing.assert_array_equal(beside[1][:1], alone[1])


def test_another_prompt_compiles_nothing(lm):
    policy = kvjax.methods.fastdecode()

    def go(seed):
        return kvjax.decode(lm, kvjax.compress(kvjax.prefill(lm, ids_of(90, seed)), policy), policy, max_new_tokens=3, stop=())

    go(0)
    with compilations() as seen:
        go(1)
    assert seen == []


def test_what_does_not_fit_is_said_at_once(lm, prompts):
    with pytest.raises(ValueError, match="when=AfterPrefill"):
        policy = kvjax.methods.fastdecode(8).replace(when=kvjax.Every(1))
        kvjax.decode(lm, kvjax.compress(prompts, policy), policy, max_new_tokens=1)
    with pytest.raises(ValueError, match="no part on the host"):
        kvjax.decode(lm, kvjax.compress(prompts, kvjax.methods.full()), kvjax.methods.fastdecode(), max_new_tokens=1)
    masked = kvjax.retrieve.MaskHeads(mask=np.zeros((3, 4), bool), inner=kvjax.retrieve.HostRows())
    for retrieve in (kvjax.retrieve.HostRows(), masked):
        merging = kvjax.methods.fastdecode(8).replace(retrieve=retrieve, merge=kvjax.merge.WeightedNearest())
        with pytest.raises(ValueError, match="reads what was cut, WeightedNearest counts it again: use merge=Drop"):
            kvjax.compress(prompts, merging)
    assert jax.tree.leaves(kvjax.methods.neo()) != []
