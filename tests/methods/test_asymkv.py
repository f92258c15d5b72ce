"""AsymKV against its NumPy transcription: a prompt and 64 steps, its bytes layer by layer, and what it is without its bits."""

import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from tests.conftest import counted_leaves, ids_of
from tests.held import held
from tests.methods.by_head import ByHead
from tests.reference.asymkv import bits_of, head

PROMPT, STEPS, R = 90, 64, 16
HOW = dict(stop=(), return_logits=True)


def method(key_layers=2, value_layers=1, **changes):
    return kvjax.methods.asymkv(key_layers, value_layers, **{"group": 8, "residual": R, **changes})


@pytest.mark.parametrize("layers", [(2, 1), (1, 0)])
def test_a_prompt_and_64_steps(lm, layers):
    pre, policy = kvjax.prefill(lm, ids_of(PROMPT)), method(*layers)
    out = kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=STEPS, **HOW)
    slow = ByHead(lm, pre, lambda layer: head(layer, 16, *layers, group=8, residual=R))
    want = [slow.step(int(token)) for token in out.tokens[0]]
    np.testing.assert_allclose(out.logits[0, 1:], want[:-1], atol=5e-4)
    for layer, heads in enumerate(slow.heads):
        for h, one in enumerate(heads):
            k, v = held(out.cache, policy.encode, layer, 0, h)
            np.testing.assert_allclose(k, one.keys(), atol=2e-3)  # a minimum may round to the next number of 16 bits
            np.testing.assert_allclose(v, one.values(), atol=2e-3)


def test_all_layers_alike_are_kivi(lm, pre):
    same, kivi = method(3, 3), kvjax.methods.kivi(bits=2, key_group=8, value_group=8, residual=R)
    got, want = (kvjax.decode(lm, kvjax.compress(pre, p), p, max_new_tokens=20, **HOW) for p in (same, kivi))
    np.testing.assert_array_equal(got.logits, want.logits)


@pytest.mark.parametrize("length", [1, 33])
def test_short_prompts_and_partial_pages(lm, length):
    pre, policy = kvjax.prefill(lm, ids_of(length)), method()
    out = kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=12, **HOW)
    slow = ByHead(lm, pre, lambda layer: head(layer, 16, 2, 1, group=8, residual=R))
    want = [slow.step(int(token)) for token in out.tokens[0]]
    np.testing.assert_allclose(out.logits[0, 1:], want[:-1], atol=5e-4)


def test_row_is_solo(lm):
    how = dict(max_new_tokens=20, pool_budget=90, **HOW)  # one program for all that are alone
    prompts, policy = [ids_of(n, seed=n) for n in (90, 3, 41, 16)], method()
    alone = [kvjax.compress(kvjax.prefill(lm, ids), policy) for ids in prompts]
    batch = kvjax.compress(kvjax.prefill(lm, prompts), policy)
    together = [kvjax.decode(lm, x, policy, **how) for x in (batch, kvjax.stack(alone))]
    for r, cache in enumerate(alone):
        solo = kvjax.decode(lm, cache, policy, **how)
        for out in together:
            np.testing.assert_array_equal(out.tokens[r], solo.tokens[0])
            np.testing.assert_allclose(out.logits[r], solo.logits[0], atol=3e-5)


def test_a_layer_takes_the_bytes_of_its_own_bits(lm):
    """Groups of 32 tokens fill their words: one bit is half the words of two."""
    policy = method(2, 1, group=16, residual=64)
    cache = kvjax.compress(kvjax.prefill(lm, ids_of(300)), policy)
    for layer, part in enumerate(cache.parts):
        bits_k, bits_v = bits_of(layer, 2, 1)
        assert (part.first, part.start.shape[0]) == (layer, 1)
        assert part.k.words.nbytes == part.slots // 16 * 16 * 4 * -(-16 * bits_k // 32)
        assert part.v.words.nbytes == part.slots * 4 * -(-16 * bits_v // 32)
    leaves = counted_leaves(cache)
    assert cache.nbytes == sum(x.addressable_shards[0].data.nbytes for x in leaves)


def test_more_layers_of_two_bits_take_more_and_come_closer(lm, pre):
    full = kvjax.methods.full()
    want = kvjax.decode(lm, kvjax.compress(pre, full), full, max_new_tokens=2, **HOW).logits[0, 1]
    error = {}
    for layers in ((0, 0), (3, 3)):
        policy = method(*layers)
        out = kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=2, **HOW)
        error[layers] = float(jnp.abs(out.logits[0, 1] - want).max())
    assert error[3, 3] < error[0, 0]


def test_what_does_not_fit_is_refused(lm, pre):
    with pytest.raises(ValueError, match="keys need the bits first"):
        kvjax.methods.asymkv(key_layers=1, value_layers=2)
    with pytest.raises(ValueError, match="the model has layers 0 to 2"):
        kvjax.compress(pre, method(5, 0))
    with pytest.raises(ValueError, match="compress with it"):
        kvjax.decode(lm, kvjax.compress(pre, method(2, 1)), method(1, 0), max_new_tokens=2)
    with pytest.raises(ValueError, match="holds slots in parts"):
        kvjax.prefill(lm, ids_of(20), streaming=method())
    with pytest.raises(ValueError, match="a cache in parts"):
        kvjax.compress(pre, method().replace(retrieve=kvjax.retrieve.TopP(tau=0.9)))
