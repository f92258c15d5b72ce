"""Compressed while reading is compressed afterwards, with one layer of dense keys and values alive at a time."""

from importlib import import_module
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import kvjax
import models
from kvjax.allocate import Adaptive, AttentionVariance, PyramidRounded, WholeLayers
from kvjax.encode import Cast, Rerotated, Slide, Stored
from models import llama, random
from tests.conftest import alive, compilations, ids_of, policy_of, toy_config
from tests.decode_loop import unchecked

streaming = import_module("kvjax.compress.streaming")


def by_layer(policy) -> bool:
    """Whether a policy can be streamed."""
    late = any(need.second_pass or need.whole_model for need in policy.needs)
    once = not policy.retrieve.reads_prompt and not late
    return policy.allocate.by_layer and once and policy.encode.page == 1 and not policy.encode.parted


METHODS = [name for name in kvjax.methods.names() if by_layer(policy_of(name))]
CROSSED = {
    "rounded pyramid": policy_of("pyramidkv").replace(allocate=PyramidRounded(window=8)),
    "adaptive in a pyramid": policy_of("adakv").replace(allocate=Adaptive(layers=policy_of("pyramidkv").allocate)),
    "whole layers": policy_of("snapkv").replace(allocate=WholeLayers(layers=(0, -1))),
    "merged, uniform": policy_of("d2o").replace(allocate=kvjax.allocate.Uniform()),
    "roles": policy_of("snapkv").replace(allocate=policy_of("heterocache").allocate),
    "values on the host": policy_of("adakv").replace(encode=Stored(placement=kvjax.placement.OnHost())),
    "an exact tail": policy_of("adakv").replace(encode=Stored(keys=Cast("bfloat16"), values=Cast("bfloat16"), window=Slide(8))),
    "re-rotated": policy_of("snapkv").replace(encode=Stored(positions=Rerotated())),
    "values by callback": policy_of("adakv").replace(encode=Stored(placement=kvjax.placement.ByCallback())),
}


def assert_same(one: kvjax.KVCache, two: kvjax.KVCache, atol: float) -> None:
    """Same regions and positions; keys, values and logits to `atol`."""
    for name in ("start", "length", "capacity", "budget", "position", "steps"):
        assert_array_equal(getattr(one, name), getattr(two, name), err_msg=name)
    assert one.nbytes == two.nbytes and one.slots == two.slots
    assert_allclose(one.logits, two.logits, atol=atol)
    assert jax.tree.structure(one) == jax.tree.structure(two)
    used = np.concatenate([np.arange(s, s + n) for s, n in zip(one.start.reshape(-1), one.lengths.reshape(-1), strict=True)])
    values = [_values(cache, jnp.asarray(used, jnp.int32)) for cache in (one, two)]
    slots = [jax.tree.map(lambda x: x[used], (cache.k, cache.pos, cache.state)) for cache in (one, two)]
    rest = [(cache.evidence, cache.memory, cache.fitted, cache.tails) for cache in (one, two)]
    for a, b in zip(jax.tree.leaves((values[0], slots[0], rest[0])), jax.tree.leaves((values[1], slots[1], rest[1])), strict=True):
        assert_allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), atol=atol)


def _values(cache: kvjax.KVCache, slots: jax.Array) -> object:
    """Values at slots as they are stored: on the device perhaps codes, elsewhere numbers."""
    return jax.tree.map(lambda x: x[slots], cache.v) if cache.placement.on_device else cache.placement.take(cache.v, slots)


#: One of each kind; the others run with the slow tests.
QUICK = ("adakv", "h2o", "compresskv", "quest", "adaptive in a pyramid", "whole layers", "merged, uniform", "values on the host")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in (*METHODS, *CROSSED)])
def test_streamed_is_compressed(lm, prompt, name):
    policy = CROSSED[name] if name in CROSSED else policy_of(name)
    want = kvjax.compress(kvjax.prefill(lm, prompt, needs=policy), policy)
    got = kvjax.prefill(lm, prompt, streaming=policy)
    assert_same(got, want, atol=0)
    tokens = [kvjax.decode(lm, c, policy, max_new_tokens=8, stop=(), return_logits=True) for c in (got, want)]
    assert_array_equal(tokens[0].tokens, tokens[1].tokens)
    assert_allclose(tokens[0].logits, tokens[1].logits, atol=1e-6)


def test_most_methods_go_layer_by_layer():
    some = {"snapkv", "adakv", "pyramidkv", "compresskv", "h2o", "tova", "streaming_llm", "keydiff", "full", "quest"}
    assert some <= set(METHODS)


@pytest.mark.parametrize("name", ["snapkv", "adakv", "pyramidkv", "h2o"])
@pytest.mark.parametrize("budget", [0.3, 1000])
def test_several_rows_in_chunks(lm, name, budget):
    prompts, policy = [ids_of(n, n) for n in (200, 3, 70, 230)], policy_of(name, budget)
    how = dict(max_new_tokens=6, stop=(), pool_budget=230)  # one program for all
    want = kvjax.compress(kvjax.prefill(lm, prompts, needs=policy, chunk=64), policy)
    got = kvjax.prefill(lm, prompts, streaming=policy, chunk=64)
    assert_same(got, want, atol=0)
    assert_array_equal(kvjax.decode(lm, got, policy, **how).tokens, kvjax.decode(lm, want, policy, **how).tokens)


def test_blocks_are_streamed_too(lm):
    ids, policy, attention = ids_of(300, 1), policy_of("streaming_llm"), kvjax.StarAttention(64, anchor=8, tail=20)
    want = kvjax.compress(kvjax.prefill(lm, ids, needs=policy, attention=attention), policy)
    assert_same(kvjax.prefill(lm, ids, streaming=policy, attention=attention), want, atol=0)


@pytest.mark.usefixtures("set_aside")
def test_one_layer_of_dense_keys_and_values_is_alive(monkeypatch):
    """At 8 layers, after every layer: no array of the prompt's length with heads but what the policy keeps."""
    lm, policy, seen = random(llama.config(toy_config(num_hidden_layers=8))), policy_of("adakv"), []
    prompts, inner = [ids_of(700, 1), ids_of(650, 2)], streaming.through
    sizes = {(1, 2, 704, 16), (1, 2, 768, 16)}
    assert {x.k[0].shape for x in kvjax.prefill(lm, prompts, needs=set()).rows} <= sizes
    dense = lambda: sum(x.shape in sizes for x in alive())  # noqa: E731

    def counted(*args):
        before = dense()
        row = inner(*args)
        seen.append((before, dense()))
        return row

    monkeypatch.setattr(streaming, "through", counted)
    cache = kvjax.prefill(lm, prompts, streaming=policy, chunk=64)
    assert seen == [(0, 2), (2, 4)] * 8 and dense() == 0
    assert_array_equal(cache.lengths.sum((0, 2)), [8 * 2 * 40] * 2)


@pytest.mark.usefixtures("set_aside")
@pytest.mark.parametrize("name", ["hcattention", "pyramid_infer"])
def test_the_residual_stream_may_wait_on_the_host(monkeypatch, lm, name):
    """The same cache, with the stream of one chunk on the device at a time."""
    policy, ids, inner, counts = policy_of(name), ids_of(300, 1), streaming.through, []
    want = kvjax.prefill(lm, ids, streaming=policy, chunk=64)
    on_device = lambda: sum(x.shape == (1, 64, 64) and x.sharding.memory_kind == "device" for x in alive())  # noqa: E731

    def counted(*args):
        row = inner(*args)
        counts.append(on_device())
        return row

    monkeypatch.setattr(streaming, "through", counted)
    assert_same(kvjax.prefill(lm, ids, streaming=policy, chunk=64, residual_on_host=True), want, atol=0)
    assert max(counts) == 0


def held_while_streaming(monkeypatch, lm, ids, policy) -> tuple[kvjax.KVCache, int]:
    """The streamed cache of a long prompt, and the most device bytes beside the weights after any layer."""
    inner, held, before = streaming.through, [], {id(x) for x in alive()}

    def counted(*args):
        row = inner(*args)
        new = [x for x in alive() if id(x) not in before and x.sharding.memory_kind == "device"]
        held.append(sum(x.nbytes for x in new))
        return row

    monkeypatch.setattr(streaming, "through", counted)
    return kvjax.prefill(lm, ids, streaming=policy, chunk=1024, residual_on_host=True), max(held)


@pytest.mark.slow
def test_a_long_prompt_holds_one_layer_and_its_codes(monkeypatch):
    """HCAttention at 8k: device bytes beside the weights, after every layer, are those of codes and one layer's keys and values."""
    lm = random(llama.config(toy_config(max_position_embeddings=16384)))
    cache, held = held_while_streaming(monkeypatch, lm, ids_of(8000, 1), policy_of("hcattention"))
    one_layer = 2 * 2 * 8192 * 16 * 4  # keys and values, heads, padded tokens, channels, bytes
    assert held <= 1.05 * (one_layer + cache.nbytes) and cache.host_nbytes > one_layer


@pytest.mark.slow
def test_the_real_model_holds_one_layer_of_a_long_prompt(monkeypatch):
    """SnapKV at 8k and a tenth: the two-step cache, whose thirty layers of keys and values were never there together."""
    lm, policy = models.load("smollm2-135m", dtype="float32"), kvjax.methods.snapkv(budget=0.1)
    ids = lm.encode("".join(file.read_text() for file in sorted(Path("docs").glob("*.md"))))[:8000]
    cache, held = held_while_streaming(monkeypatch, lm, ids, policy)
    one_layer, stream = 2 * 3 * 8192 * 64 * 4, 2 * 1024 * 576 * 4  # one chunk of the residual stream, as it goes in and comes out
    assert len(ids) == 8000 and held <= 1.05 * (one_layer + stream + cache.nbytes)
    assert_same(cache, kvjax.compress(kvjax.prefill(lm, ids, needs=policy, chunk=1024), policy), atol=2e-4)


def test_layers_share_programs(lm):
    policy = policy_of("adakv")
    kvjax.prefill(lm, ids_of(130, 1), streaming=policy)
    with compilations() as seen:
        kvjax.prefill(lm, [ids_of(131, 2)], streaming=policy)
    assert seen == []


def test_what_needs_all_layers_is_refused_before_tracing(lm, prompt):
    stream = lambda policy, **more: lambda: kvjax.prefill(lm, prompt, streaming=policy, **more)  # noqa: E731
    inside = policy_of("adakv").replace(allocate=Adaptive(layers=AttentionVariance()))
    cases = [
        (ValueError, "AttentionVariance needs the scores of all layers", stream(policy_of("d2o"))),
        (ValueError, "Adaptive needs the scores of all layers", stream(inside)),
        (ValueError, "AcrossModel needs the scores of all layers", stream(policy_of("kvzip"))),
        (ValueError, "second pass over all layers", stream(policy_of("kvzip").replace(allocate=kvjax.allocate.Uniform()))),
        (ValueError, "PivotRefresh keeps all of the prompt's keys", stream(policy_of("heterocache"))),
        (ValueError, "codes 8 slots at once", stream(policy_of("kivi"))),
        (ValueError, "leave needs= and all_logits= out", stream(policy_of("snapkv"), needs=policy_of("snapkv"))),
        (ValueError, "leave needs= and all_logits= out", stream(policy_of("snapkv"), all_logits=True)),
        (ValueError, "give streaming=policy with it", lambda: kvjax.prefill(lm, prompt, residual_on_host=True)),
    ]
    with compilations() as seen:
        for kind, message, call in cases:
            with pytest.raises(kind, match=message):
                call()
        with unchecked(), pytest.raises(TypeError, match="streaming= wants a kvjax policy"):
            stream("snapkv")()
    assert seen == []
