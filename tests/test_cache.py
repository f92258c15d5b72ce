"""Bytes: what is allocated, what is alive, what is in use."""

import numpy as np
import pytest

import kvjax
from kvjax.encode import Cast, Stored
from tests.conftest import ids_of, live_bytes, policy_of
from tests.decode_loop import unchecked


def test_released_prefill_leaves_the_cache_and_nothing_else(lm):
    before = live_bytes()
    pre = kvjax.prefill(lm, ids_of(500, 3))
    cache = kvjax.compress(pre, policy_of("adakv", 100))
    del pre
    grown = live_bytes() - before
    assert abs(grown - cache.nbytes - cache.logits.nbytes) <= 0.02 * cache.nbytes


def test_head_budgets_free_real_bytes(lm):
    """Ragged heads at a mean budget take what uniform heads take: nothing is padded to the widest head."""
    pre = kvjax.prefill(lm, ids_of(900, 3))
    ragged, even = (kvjax.compress(pre, policy_of(n, 200)) for n in ("adakv", "snapkv"))
    assert ragged.lengths.std() > 5 and even.lengths.std() == 0
    assert ragged.nbytes == even.nbytes
    exact = even.lengths.sum() * even.slot_nbytes
    assert even.nbytes <= 1.15 * exact + 512 * even.slot_nbytes


def test_room_is_counted_apart(pre):
    tight = kvjax.compress(pre, policy_of("snapkv"))
    roomy = kvjax.compress(pre, policy_of("snapkv"), headroom=64)
    assert tight.room_nbytes <= 7 * 6 * tight.slot_nbytes
    assert roomy.room_nbytes >= 64 * 6 * roomy.slot_nbytes and (roomy.lengths == tight.lengths).all()


def test_decoding_makes_room_for_what_it_adds_and_no_more(lm, pre):
    policy = policy_of("snapkv")
    out = kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=16, stop=())
    assert out.cache.room_nbytes <= 7 * 6 * out.cache.slot_nbytes
    streaming = policy_of("streaming_llm")
    out = kvjax.decode(lm, kvjax.compress(pre, streaming), streaming, max_new_tokens=200, stop=())
    assert (np.asarray(out.cache.capacity) <= 48).all()


def test_kept_checks_its_layer(pre):
    cache = kvjax.compress(pre, policy_of("snapkv"))
    with pytest.raises(IndexError, match="layers 0 to 2"):
        cache.kept(3)
    assert len(cache.kept(-1)) == 1


def test_stack_needs_caches_of_one_shape(pre):
    plain = kvjax.compress(pre, policy_of("snapkv"))
    cast = kvjax.compress(pre, policy_of("snapkv").replace(encode=Stored(keys=Cast("float16"), values=Cast("float16"))))
    with pytest.raises(ValueError, match="cannot share a pool"):
        kvjax.stack([plain, cast])
    with pytest.raises(ValueError, match="at least one"):
        kvjax.stack([])
    np.testing.assert_array_equal(kvjax.stack(x for x in [plain, plain]).lengths, kvjax.stack([plain, plain]).lengths)
    with unchecked(), pytest.raises(TypeError, match="expected a list of caches to stack; got one KVCache"):
        kvjax.stack(plain)
    with unchecked(), pytest.raises(TypeError, match="expected a KVCache from kvjax.compress, extend or decode; got Prefilled"):
        kvjax.stack([pre])


@pytest.mark.parametrize(
    "one, other, differ",
    [
        ("full", "omnikv", "state of the retriever: none and FilterState"),
        ("omnikv", "full", "state of the retriever: FilterState and none"),
        ("quest", "snapkv", "state of the retriever: PageBounds and none"),
        ("h2o", "tova", "evidence: "),
        ("snapkv", "streaming_llm", "evidence: none and "),
        ("full", "less", "memory of the merger: none and ['H'] float32"),
    ],
)
def test_stack_loses_nothing_that_one_cache_alone_has(lm, one, other, differ):
    policies = [policy_of(one), policy_of(other)]
    pre = kvjax.prefill(lm, ids_of(90), needs=policies)
    with pytest.raises(ValueError, match="compress all of them with one policy") as error:
        kvjax.stack([kvjax.compress(pre, policy) for policy in policies])
    assert differ in str(error.value)


def test_what_a_cache_over_devices_does_not_do_is_said(lm, pre, tmp_path):
    policy, mesh = policy_of("snapkv"), kvjax.mesh(rows=1)
    cache = kvjax.shard(kvjax.compress(pre, policy), mesh)
    calls = (
        lambda: kvjax.stack([cache]),
        lambda: kvjax.shard(cache, mesh),
        lambda: next(kvjax.stream(lm, cache, policy)),
        lambda: kvjax.save_cache(cache, tmp_path / "cache", lm, policy),
    )
    for call in calls:
        with unchecked(), pytest.raises(TypeError, match="got a ShardedCache, .* before kvjax.shard, .*sharding.md"):
            call()
