"""LESS's maps: the host's evictions and the joined attention by transcription, gradients, runs, artefacts, refusals."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.attention_inputs import AttentionInputs
from kvjax.train import Examples, Frozen, forward, stacked, train, untrained
from kvjax.train.absorbing import absorbing, absorbing_attention, logits
from kvjax.train.heavy_hitters import held_by_heavy_hitters
from tests.conftest import ids_of
from tests.method_cases import side_maps
from tests.reference import less as slow
from tests.train.checks import NOW, STEPS, cut_and_taken_up, falls, kept_in, part, slopes, source
from tests.train.conftest import LESS_TOY, texts

T, SLOTS, RECENT = 30, 8, 3


@pytest.fixture(scope="module")
def whole(tiny):
    return train(tiny, LESS_TOY, source(), steps=STEPS)


def test_what_is_held_and_the_output_are_the_transcription():
    """Token by token from an empty cache, as H2O with a side state decodes."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    q, k, v = draw(1, 2, 2, T, 16), draw(1, 2, T, 16), draw(1, 2, T, 16)
    inputs, maps = AttentionInputs(q=jnp.asarray(q), k=jnp.asarray(k), v=jnp.asarray(v)), side_maps()
    here = jax.tree.map(lambda x: jnp.asarray(x[1]), maps)

    @jax.jit
    def both(inputs):
        seen = held_by_heavy_hitters(logits(inputs.q, inputs.k), slots=SLOTS, recent=RECENT)
        return seen, absorbing_attention(inputs, seen, here)

    seen, out = both(inputs)
    for h in range(2):
        own = [{name: np.asarray(x[1, h], np.float64) for name, x in maps[side].items()} for side in "qk"]
        head = slow.Head(*own, heavy=SLOTS - RECENT, recent=RECENT)
        head.prefill(np.ones((2, 1, 1)), k[0, h, :1], v[0, h, :1])
        for t in range(1, T):
            np.testing.assert_array_equal(np.flatnonzero(seen[0, h, t]), np.append(head.rule.held, t))
            want = head.step(q[0, h, :, t], k[0, h, t][None], v[0, h, t][None])
            np.testing.assert_allclose(out[0, h, :, t], want, rtol=1e-4, atol=1e-5)
    assert float(head.side.a.sum()) > 0.1 and seen[0, :, -1].sum() == 2 * (SLOTS + 1)


@pytest.mark.slow
def test_where_nothing_goes_nothing_is_lost_and_the_text_is_read_as_it_is(tiny):
    tokens, maps = stacked(texts(2, seed=5)).tokens[0], untrained(tiny, LESS_TOY)
    plain = forward(tiny.decoder, tiny.params, tokens, remat=False)[0]
    x, [(mine, alone)] = forward(tiny.decoder, tiny.params, tokens, hook=absorbing(40, 20), gates=maps, remat=False)
    np.testing.assert_array_equal(np.asarray(x), np.asarray(plain))
    np.testing.assert_array_equal(mine, 0)
    np.testing.assert_array_equal(alone, 0)


@pytest.mark.slow
def test_gradients_of_the_whole_loss_are_central_differences(tiny):
    exact, numeric = slopes(tiny, LESS_TOY, draw=0.3, h=1e-4)
    assert abs(exact) > 1e-3
    np.testing.assert_allclose(exact, numeric, rtol=3e-2)


@pytest.mark.slow
def test_training_lowers_the_loss_on_held_out_texts_and_no_cut_changes_a_bit(tiny, whole, tmp_path):
    before, after = falls(tiny, LESS_TOY, whole.weights)
    assert after["loss"] < 0.97 * before["loss"] and after["explained"] > before["explained"] + 0.03
    np.testing.assert_allclose(before["without"], after["without"], rtol=1e-6)
    cut_and_taken_up(tiny, LESS_TOY, tmp_path / "run", whole)


@pytest.mark.slow
def test_what_pads_a_text_changes_no_loss(tiny):
    weights = untrained(tiny, LESS_TOY)
    loss = jax.jit(lambda batch: LESS_TOY.loss(weights, Frozen.of(tiny), batch, NOW))
    alone, padded = (loss(part(tiny, LESS_TOY, texts(2, length=24), n)) for n in (24, 40))
    np.testing.assert_allclose(alone.loss, padded.loss, rtol=1e-5)


@pytest.mark.slow
def test_an_artefact_is_served(tiny, whole, tmp_path):
    folder = kept_in(tmp_path / "maps", tiny, LESS_TOY, whole.weights)
    policy = kvjax.methods.less(budget=12, artefact=folder)
    given = kvjax.methods.less(jax.tree.map(np.asarray, whole.weights), budget=12)
    assert "less of" in policy.merge.origin
    pre = kvjax.prefill(tiny, ids_of(40), needs=[policy, given])
    both = [kvjax.decode(tiny, kvjax.compress(pre, p), p, max_new_tokens=4, stop=(), return_logits=True) for p in (policy, given)]
    np.testing.assert_array_equal(both[0].logits, both[1].logits)


def test_what_cannot_teach_is_refused(tiny):
    with pytest.raises(ValueError, match="texts of 12 tokens fit 12 slots: nothing is absorbed"):
        train(tiny, LESS_TOY, Examples(texts(2, length=12)), steps=1)
    assert replace(LESS_TOY, budget=0.05).slots(512) == 25 and replace(LESS_TOY, budget=0.05).slots(8) == 1
