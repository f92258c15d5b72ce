"""Layers that read the cache of the nearest kept layer: against the layers written out, bytes, policies that cut what is kept."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
import models
from models.shared_layers import sources
from tests.conftest import ids_of, policy_of
from tests.eager import attention

STEPS = 64


@pytest.fixture(scope="module")
def shared(lm):
    return models.share_layers(lm, kept=(0, 2))  # of three layers: 1 reads 0


class Written:
    """A sequence through the three layers, keys and values of layers 0 and 2 alone; float64 attention, token by token."""

    def __init__(self, lm):
        self.lm, self.k, self.v = lm, {}, {}

    def step(self, token, position):
        x, at = self.lm.decoder.embed(self.lm.params, jnp.asarray([[token]], jnp.int32)), jnp.asarray([[position]], jnp.int32)
        for layer, (weights, source) in enumerate(zip(self.lm.params["layers"], (0, 0, 2), strict=True)):

            def attend(inputs, layer=layer, source=source):
                if layer == source:
                    add = lambda held, new: np.concatenate([held[layer], new], 1) if layer in held else new  # noqa: E731
                    self.k[layer] = add(self.k, np.asarray(inputs.k)[0])
                    self.v[layer] = add(self.v, np.asarray(inputs.v)[0])
                out, _ = attention(np.asarray(inputs.q)[0, :, :, 0], self.k[source], self.v[source])
                return jnp.asarray(out[None, :, :, None], jnp.float32), None

            x, _ = self.lm.decoder.layer(weights, x, at, attend)
        return np.asarray(self.lm.decoder.unembed(self.lm.params, x))[0, 0]


def test_source_maps():
    assert sources(8, range(0, 8, 2)) == (0, 0, 2, 2, 4, 4, 6, 6)
    assert sources(8, range(0, 8, 4)) == (0, 0, 0, 0, 4, 4, 4, 4)


def test_a_prompt_and_64_steps(lm, shared):
    ids, policy, slow = ids_of(40, 2), kvjax.methods.full(), Written(lm)
    want = [slow.step(token, i) for i, token in enumerate(ids)]
    pre = kvjax.prefill(shared, ids)
    np.testing.assert_allclose(pre.rows[0].logits, want[-1], atol=1e-4)
    out = kvjax.decode(shared, kvjax.compress(pre, policy), policy, max_new_tokens=STEPS, stop=(), return_logits=True)
    want = [slow.step(int(token), 40 + i) for i, token in enumerate(out.tokens[0])]
    np.testing.assert_allclose(out.logits[0, 1:], want[:-1], atol=2e-4)
    np.testing.assert_allclose(out.cache.logits[0], want[-1], atol=2e-4)


def test_layers_that_are_not_kept_hold_nothing(lm, shared, pre, prompt):
    full = kvjax.methods.full()
    all_layers, two = kvjax.compress(pre, full), kvjax.compress(kvjax.prefill(shared, prompt), full)
    assert two.start.shape[0] == 2 and two.lengths.sum() == 2 * 2 * 90
    assert two.used_nbytes * 3 == all_layers.used_nbytes * 2
    assert all_layers.nbytes - two.nbytes >= 2 * 90 * two.slot_nbytes  # layer 1 of two heads
    assert shared.nbytes == lm.nbytes


def test_all_layers_kept_is_the_model(lm, pre, prompt):
    same = models.share_layers(lm, every=1)
    mine = kvjax.prefill(same, prompt, needs=kvjax.evidence.STANDARD)
    np.testing.assert_array_equal(mine.rows[0].logits, pre.rows[0].logits)
    policy = policy_of("snapkv")
    want, got = (
        kvjax.decode(model, kvjax.compress(x, policy), policy, max_new_tokens=4, stop=(), return_logits=True)
        for model, x in ((lm, pre), (same, mine))
    )
    np.testing.assert_array_equal(got.logits, want.logits)


@pytest.mark.parametrize("name", ["snapkv", "h2o"])
def test_what_is_kept_can_be_cut(shared, prompt, name):
    policy = policy_of(name, 20)
    cache = kvjax.compress(kvjax.prefill(shared, prompt, needs=policy), policy)
    assert cache.lengths.shape == (2, 1, 2) and cache.lengths.sum() == 2 * 2 * 20
    out = kvjax.decode(shared, cache, policy, max_new_tokens=STEPS, stop=(), return_logits=True)
    assert jnp.isfinite(out.logits).all()
    np.testing.assert_array_equal(kvjax.prefill(shared, prompt, streaming=policy).lengths, cache.lengths)


def test_a_second_pass_is_that_of_the_prompt_read_again(shared, prompt):
    policy = policy_of("kvzip", 20)
    pre = kvjax.second_pass(shared, kvjax.prefill(shared, prompt, needs=policy), policy)
    cache = kvjax.compress(pre, policy)
    assert cache.lengths.sum() == 2 * 2 * 20
    need = kvjax.evidence.Probed(kvjax.evidence.ColumnSums())
    seen = kvjax.probe(shared, kvjax.prefill(shared, prompt), ids_of(8, 9), {kvjax.evidence.ColumnSums()}).rows[0].evidence[1]
    whole = kvjax.prefill(shared, prompt + ids_of(8, 9), needs={kvjax.evidence.ColumnSums()}).rows[0].evidence[1]
    alone = kvjax.prefill(shared, prompt, needs={kvjax.evidence.ColumnSums()}).rows[0].evidence[1]
    both = whole.column_sums_by_head()[..., :90] - alone.column_sums_by_head()[..., :90]
    np.testing.assert_allclose(seen.of(need)[..., :90], both, atol=1e-4)


def test_in_chunks_and_known_tokens_at_once(shared):
    ids, full = ids_of(150, 5), kvjax.methods.full()
    whole, parts = (kvjax.prefill(shared, ids, chunk=chunk) for chunk in (None, 64))
    np.testing.assert_allclose(parts.rows[0].logits, whole.rows[0].logits, atol=1e-5)
    cache = kvjax.compress(kvjax.prefill(shared, ids[:100]), full)
    np.testing.assert_allclose(kvjax.extend(shared, cache, ids[100:], full).cache.logits[0], whole.rows[0].logits, atol=1e-4)


def test_what_does_not_fit_is_said_at_once(lm, shared):
    with pytest.raises(ValueError, match="0 among them"):
        models.share_layers(lm, kept=(1, 2))
    with pytest.raises(ValueError, match="one of them"):
        models.share_layers(lm, every=2, kept=(0,))
    with pytest.raises(TypeError, match="shared already"):
        models.share_layers(shared, every=2)
    with pytest.raises(ValueError, match="share its layers first"):
        models.share_layers(models.shard(lm, kvjax.mesh()), every=2)
    mixed = models.Decoder(dataclasses.replace(lm.decoder.config, windows=(None, 16, None)))
    with pytest.raises(ValueError, match="another sliding window"):
        models.share_layers(lm.replace(decoder=mixed), kept=(0, 2))
