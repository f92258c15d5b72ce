"""LookaheadKV's learned tokens: scores as they are served, labels by transcription, runs, artefacts, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.gates import SoftTokens
from kvjax.train import Example, Examples, Frozen, plain, train, untrained
from kvjax.train.soft_rows import labelling, soft_rows
from tests.conftest import ids_of
from tests.method_cases import soft_tokens
from tests.reference.attention import attention_rows
from tests.train.checks import NOW, STEPS, cut_and_taken_up, falls, kept_in, part, slopes, source
from tests.train.conftest import LOOKAHEAD, texts

N = 24


@pytest.fixture(scope="module")
def whole(tiny):
    return train(tiny, LOOKAHEAD, source(), steps=STEPS)


def paid_by(lm, weights, examples):
    batch = part(lm, LOOKAHEAD, examples)

    @jax.jit
    def both(frozen, soft):
        _, read = frozen.forward(batch.tokens, hook=labelling(batch.label, frozen.decoder.windows))
        return soft_rows(frozen, soft, read, batch.prompt.sum(-1, dtype=jnp.int32))

    return both(Frozen.of(lm), SoftTokens.of(weights, LOOKAHEAD.alpha))


@pytest.mark.slow
def test_what_they_pay_is_what_is_served(lm):
    """A text of 24 + 16 tokens, beside a padded one of 9 + 8: as the second pass of either prompt."""
    long, short = ids_of(N + 16, 3), ids_of(17, 4)
    examples = [Example(tuple(ids), (False,) * n + (True,) * (len(ids) - n)) for ids, n in ((long, N), (short, 9))]
    paid = paid_by(lm, soft_tokens(), examples)
    policy = kvjax.methods.lookahead_kv(soft_tokens(), budget=8, alpha=LOOKAHEAD.alpha)
    pre = kvjax.second_pass(lm, kvjax.prefill(lm, [long[:N], short[:9]], needs=policy), policy)
    for row, (n, of_row) in enumerate(zip((N, 9), paid, strict=True)):
        for layer, got in enumerate(of_row):
            want = pre.rows[row].evidence[layer].of(policy.score.tokens)[0] / policy.score.tokens.size
            np.testing.assert_allclose(got[..., :n], want[..., :n], rtol=1e-4, atol=1e-6)
            np.testing.assert_array_equal(got[..., n:], 0)


def test_labels_are_the_transcription_and_the_text_is_read_as_it_is(lm):
    examples = [Example(tuple(ids_of(40, 3)), (False,) * N + (True,) * 16)]
    tokens, frozen = part(lm, LOOKAHEAD, examples).tokens, Frozen.of(lm)
    inner = labelling(jnp.arange(40)[None] >= N, lm.decoder.windows)

    def look(layer, weights, inputs, attend):
        out, read = inner(layer, weights, inputs, attend)
        return out, (inputs.q, inputs.k, read[2])

    run = jax.jit(lambda hook: frozen.forward(tokens, hook=hook), static_argnums=0)
    x, found = run(look)
    np.testing.assert_array_equal(np.asarray(x), np.asarray(run(plain)[0]))
    for q, k, label in found:
        rows = attention_rows(*(np.asarray(y[0], np.float64) for y in (q, k)))
        np.testing.assert_allclose(label[0], rows[:, :, N:].mean(2), atol=1e-6)


def test_untrained_updates_leave_the_model_to_the_bit(tiny):
    soft = SoftTokens.of(untrained(tiny, LOOKAHEAD), LOOKAHEAD.alpha).at(0)
    jax.tree.map(np.testing.assert_array_equal, soft.read_by(tiny.params["layers"][0]), tiny.params["layers"][0])


def test_gradients_of_the_whole_loss_are_central_differences(tiny):
    exact, numeric = slopes(tiny, LOOKAHEAD, draw=0.05, h=2e-3)
    assert abs(exact) > 1e-3
    np.testing.assert_allclose(exact, numeric, rtol=3e-2)


@pytest.mark.slow
def test_training_lowers_the_loss_on_held_out_texts_and_no_cut_changes_a_bit(tiny, whole, tmp_path):
    before, after = falls(tiny, LOOKAHEAD, whole.weights)
    assert after["loss"] < 0.95 * before["loss"] and [line["step"] for line in whole.log] == list(range(STEPS))
    cut_and_taken_up(tiny, LOOKAHEAD, tmp_path / "run", whole)


@pytest.mark.slow
def test_what_pads_a_text_changes_no_loss(tiny):
    short = Example(tuple(ids_of(24, 1)), (False,) * 12 + (True,) * 12)
    loss = jax.jit(lambda batch: LOOKAHEAD.loss(untrained(tiny, LOOKAHEAD), Frozen.of(tiny), batch, NOW))
    alone, padded = (loss(part(tiny, LOOKAHEAD, [short], n)) for n in (24, 40))
    np.testing.assert_allclose(alone.loss, padded.loss, rtol=1e-5)
    np.testing.assert_allclose(alone.terms["rank_correlation"], padded.terms["rank_correlation"], rtol=1e-5)


@pytest.mark.slow
def test_an_artefact_is_served_with_the_scale_it_was_trained_with(tiny, whole, tmp_path):
    folder = kept_in(tmp_path / "tokens", tiny, LOOKAHEAD, whole.weights)
    policy = kvjax.methods.lookahead_kv(budget=12, artefact=folder)
    given = kvjax.methods.lookahead_kv(jax.tree.map(np.asarray, whole.weights), budget=12, alpha=LOOKAHEAD.alpha)
    assert policy.score.tokens.alpha == LOOKAHEAD.alpha and "lookahead_kv of" in policy.score.tokens.origin
    pre = kvjax.prefill(tiny, ids_of(40))
    both = [kvjax.compress(kvjax.second_pass(tiny, pre, p), p).kept(0)[0] for p in (policy, given)]
    for got, want in zip(*both, strict=True):
        np.testing.assert_array_equal(got, want)


def test_what_cannot_teach_is_refused(tiny):
    with pytest.raises(ValueError, match="0 of prompt: lookahead_kv learns what an answer looks at"):
        train(tiny, LOOKAHEAD, Examples((Example(tuple(ids_of(8)), (True,) * 8),)), steps=1)
    with pytest.raises(ValueError, match="leave the 4 learned ones no room in a context of 1024"):
        train(tiny, LOOKAHEAD, Examples(texts(2, length=1021)), steps=1)
