"""The differentiable forward pass: the logits of a prefill, gates that are open, gradients against central differences."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
import models
from kvjax.evidence import HiddenStates
from kvjax.gates import RetentionGate
from kvjax.train import by_blocks, capacity, causal_attention, decay, decaying, forward, plain, retained
from models import mistral
from tests.conftest import ids_of, toy_config
from tests.method_cases import retention_gate
from tests.reference import trim_kv

IDS = jnp.asarray([ids_of(40, 3), ids_of(40, 4)], jnp.int32)
GATE = RetentionGate(heads=2, hidden=24)
WEIGHTS = jax.tree.map(jnp.asarray, retention_gate())


def logits_of(lm, x, **arguments):
    return by_blocks(lambda z: z, lm.decoder, lm.params, x, **arguments)


def nll(logits, targets):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1)[..., 0]


def loss(weights, lm, *, remat=True, block=16):
    """Next tokens, and what the gates keep alive above one token, which all queries but the first do."""
    x, log_beta = forward(lm.decoder, lm.params, IDS, hook=decaying(GATE), gates=weights, remat=remat)
    tokens = by_blocks(nll, lm.decoder, lm.params, x[:, :-1], IDS[:, 1:], block=block)
    return tokens.mean() + 0.1 * capacity(log_beta, 1)


def test_it_gives_the_logits_of_a_prefill(lm):
    x, aux = jax.jit(partial(forward, lm.decoder))(lm.params, IDS)
    got = logits_of(lm, x)
    for row, ids in enumerate(IDS.tolist()):
        want = kvjax.prefill(lm, ids, all_logits=True).rows[0].all_logits[:40]
        np.testing.assert_allclose(got[row], want, atol=3e-5)
    assert aux == [()] * 3


def test_sliding_windows_are_those_of_the_model():
    windowed = models.random(mistral.config(toy_config(model_type="mistral", sliding_window=8)), seed=1)
    assert set(windowed.decoder.windows) == {8}
    x, _ = forward(windowed.decoder, windowed.params, IDS[:1])
    want = kvjax.prefill(windowed, IDS[0].tolist(), all_logits=True).rows[0].all_logits[:40]
    np.testing.assert_allclose(logits_of(windowed, x)[0], want, atol=3e-5)


def test_open_gates_are_the_plain_pass(lm):
    x, _ = forward(lm.decoder, lm.params, IDS)
    zeros = lambda layer, weights, inputs, attend: (attend(inputs, jnp.zeros((1, 1, 1, 1, 1))), ())  # noqa: E731
    np.testing.assert_array_equal(forward(lm.decoder, lm.params, IDS, hook=plain, remat=False)[0], x)
    np.testing.assert_allclose(forward(lm.decoder, lm.params, IDS, hook=zeros)[0], x, atol=1e-6)
    open_gates = jax.tree.map(jnp.zeros_like, WEIGHTS)
    open_gates["down"]["bias"] = jnp.full((3, 2), 100.0)
    got, log_beta = forward(lm.decoder, lm.params, IDS, hook=decaying(GATE), gates=open_gates)
    np.testing.assert_allclose(got, x, atol=1e-6)
    assert all(np.abs(layer).max() < 1e-30 for layer in log_beta)


def test_a_gate_reads_what_it_reads_in_a_prefill(lm):
    """Without its bias the forward pass shows a gate what a prefill shows it."""
    look = lambda layer, weights, inputs, attend: (attend(inputs), GATE.apply({"params": weights}, inputs.x))  # noqa: E731
    _, log_beta = forward(lm.decoder, lm.params, IDS[:1], hook=look, gates=WEIGHTS)
    policy = kvjax.methods.trim_kv(WEIGHTS, budget=8)
    pre = kvjax.prefill(lm, IDS[0].tolist(), needs=policy.needs | {HiddenStates()})
    for layer in range(3):
        np.testing.assert_allclose(log_beta[layer][0], pre.rows[0].evidence[layer].of(policy.score.gate)[0, :, :40], atol=1e-5)


def test_padding_on_the_right_changes_nothing_before_it(lm):
    x, _ = forward(lm.decoder, lm.params, IDS)
    other, _ = forward(lm.decoder, lm.params, IDS.at[:, 25:].set(0))
    np.testing.assert_array_equal(other[:, :25], x[:, :25])
    assert np.abs(other[:, 25:] - x[:, 25:]).max() > 0.1


@pytest.mark.parametrize("block", [1, 7, 40, 512])
def test_logits_in_blocks_are_the_logits(lm, block):
    x, _ = forward(lm.decoder, lm.params, IDS)
    np.testing.assert_allclose(logits_of(lm, x, block=block), lm.decoder.unembed(lm.params, x), atol=1e-5)
    want = nll(lm.decoder.unembed(lm.params, x), IDS)
    np.testing.assert_allclose(by_blocks(nll, lm.decoder, lm.params, x, IDS, block=block), want, atol=1e-5)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_gradients_through_a_gates_weights_are_central_differences(lm, seed):
    at = jax.jit(partial(loss, lm=lm))
    slope = jax.grad(at)(WEIGHTS)
    rng = np.random.default_rng(seed)
    along = jax.tree.map(lambda w: jnp.asarray(rng.normal(size=w.shape), jnp.float32), WEIGHTS)
    moved = lambda h: jax.tree.map(lambda w, d: w + h * d, WEIGHTS, along)  # noqa: E731
    h = 2e-3
    numeric = (at(moved(h)) - at(moved(-h))) / (2 * h)
    exact = sum(jnp.vdot(a, b) for a, b in zip(jax.tree.leaves(slope), jax.tree.leaves(along), strict=True))
    assert abs(exact) > 1e-2
    np.testing.assert_allclose(exact, numeric, rtol=1e-2)


def test_every_weight_of_every_layer_has_a_gradient(lm):
    slope = jax.grad(partial(loss, lm=lm))(WEIGHTS)
    for leaf in jax.tree.leaves(slope):
        assert np.isfinite(leaf).all() and (np.abs(leaf).reshape(3, -1).max(1) > 0).all()


def test_computing_layers_again_changes_no_gradient(lm):
    kept, again = (jax.grad(partial(loss, lm=lm, remat=remat, block=block))(WEIGHTS) for remat, block in ((False, 512), (True, 8)))
    for a, b in zip(jax.tree.leaves(kept), jax.tree.leaves(again), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_a_step_downhill_lowers_the_loss(lm):
    value, slope = jax.value_and_grad(partial(loss, lm=lm))(WEIGHTS)
    stepped = jax.tree.map(lambda w, g: w - 0.01 * g, WEIGHTS, slope)
    assert loss(stepped, lm) < value


def test_decayed_attention_is_the_transcription(lm):
    """A layer's attention under the gate, head by head."""

    def look(layer, weights, inputs, attend):
        log_beta = GATE.apply({"params": weights}, inputs.x)
        out = attend(inputs, decay(log_beta))
        return out, (inputs, log_beta, out)

    seen = forward(lm.decoder, lm.params, IDS[:1], hook=look, gates=WEIGHTS)[1]
    for inputs, log_beta, out in seen:
        for h in range(2):
            q, k, v = (np.asarray(x[0, h], np.float64) for x in (inputs.q, inputs.k, inputs.v))
            want = trim_kv.decayed_rows(q, k, np.asarray(log_beta[0, h], np.float64)) @ v
            np.testing.assert_allclose(out[0, h], want, atol=1e-5)


def test_what_is_alive_and_its_price_are_the_transcription():
    log_beta = jnp.log(jnp.array([[[1, 0.5, 0.25, 0.9]]]))
    np.testing.assert_allclose(jnp.exp(decay(log_beta))[0, 0, 0, 3], [1, 0.25, 0.25, 1], rtol=1e-6)
    np.testing.assert_allclose(retained(log_beta)[0, 0], [1, 2, 2.5, 2.5], rtol=1e-6)
    np.testing.assert_allclose(capacity([log_beta], 2), 0.5, rtol=1e-6)
    drawn = -np.random.default_rng(0).exponential(size=(4, 2, 3, 50)) / 5
    want = trim_kv.capacity_code(np.stack([trim_kv.retained(row) for row in drawn.reshape(-1, 50)]), 8)
    np.testing.assert_allclose(capacity(list(jnp.asarray(drawn, jnp.float32)), 8), want, rtol=1e-5)
    assert capacity([log_beta], 4) == 0


def test_a_bias_of_minus_infinity_hides_a_key(lm):
    """Two attentions mixed, as DuoAttention learns its alphas: the streaming one is the one with a bias."""
    t = jnp.arange(40)
    bias = jnp.where((t < 2) | (t[:, None] - t < 5), 0.0, -jnp.inf)[None, None, None]

    def look(layer, weights, inputs, attend):
        return attend(inputs), (inputs, attend(inputs, bias))

    for inputs, out in forward(lm.decoder, lm.params, IDS[:1], hook=look)[1]:
        q, k, v = (np.asarray(x[0], np.float64) for x in (inputs.q, inputs.k, inputs.v))
        for i in (0, 4, 11, 39):
            j = [j for j in range(i + 1) if j < 2 or i - j < 5]
            z = np.einsum("hgd,hnd->hgn", q[:, :, i], k[:, j]) / 4
            a = np.exp(z - z.max(-1, keepdims=True))
            want = np.einsum("hgn,hnd->hgd", a / a.sum(-1, keepdims=True), v[:, j])
            np.testing.assert_allclose(out[0, :, :, i], want, atol=1e-5)
            assert causal_attention(inputs, bias).dtype == inputs.q.dtype
