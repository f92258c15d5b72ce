"""DBTrimKV against its transcription: one budget for the model, slots traded between heads, the shared projection."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.allocate import AcrossModel
from kvjax.evidence import HiddenStates
from kvjax.score.retention import retention
from kvjax.view import Ranking
from tests.method_cases import deep_retention_gate
from tests.methods.gated import Transcribed, of_layer
from tests.reference import make_each_token_count as slow

BUDGET, BUFFER, STEPS = 24, 5, 64
WEIGHTS = deep_retention_gate()
POLICY = kvjax.methods.make_each_token_count(WEIGHTS, budget=BUDGET, buffer=BUFFER)
#: Layer 0 and layer 1, one head each.
BETA = np.array([[0.9, 0.5, 0.99], [0.2, 0.3, 0.4]])


@pytest.fixture(scope="module")
def prompted(lm, prompt):
    return kvjax.prefill(lm, prompt, needs=POLICY.needs | {HiddenStates()})


class Model(Transcribed):
    """All heads, cut together after the prompt and after every BUFFER-th token."""

    steps = 0

    def __init__(self, pre):
        gate = lambda layer, x: slow.gate(np.asarray(x, np.float64), self.weights(layer)).T  # noqa: E731
        super().__init__(
            pre,
            lambda: slow.Head(16),
            lambda layer, inputs: gate(layer, np.asarray(inputs.x)[0]),
            lambda layer: gate(layer, pre.rows[0].evidence[layer].hidden_states()[0]),
        )
        slow.evict(self.heads, BUDGET)

    def weights(self, layer):
        per_layer = {name: of_layer(WEIGHTS[name], layer) for name in ("up", "across")}
        return per_layer | {"down": {name: w.astype(np.float64) for name, w in WEIGHTS["down"].items()}}

    def attend(self, layer, inputs):
        out = super().attend(layer, inputs)
        if layer == 2:
            self.steps += 1
            if self.steps % BUFFER == 0:
                slow.evict(self.heads, BUDGET)
        return out


def test_prompt_and_64_steps_are_the_transcription(lm, prompted):
    rule, cache = Model(prompted), kvjax.compress(prompted, POLICY)
    rule.check_prompt(cache)
    assert cache.lengths.sum() == 6 * BUDGET and len(np.unique(cache.lengths)) > 1
    out = kvjax.decode(lm, cache, POLICY, max_new_tokens=STEPS, stop=(), return_logits=True)
    rule.check_steps(lm, out)
    assert (out.cache.lengths != cache.lengths + STEPS % BUFFER).any()
    assert out.cache.lengths.sum() == 6 * (BUDGET + STEPS % BUFFER)


def test_the_worked_scores_and_who_stays():
    pos = jnp.broadcast_to(jnp.arange(3), (2, 1, 1, 3))
    u = retention(jnp.log(jnp.asarray(BETA, jnp.float32))[:, None], pos[:, 0], jnp.array([3, 3]))[:, None]
    np.testing.assert_allclose(u[0, 0, 0], [-0.421442, -2.079442, -0.020101], atol=1e-6)
    np.testing.assert_allclose(u[1, 0, 0], [-6.437752, -3.611918, -1.832581], atol=1e-6)
    ranking = Ranking(scores=u, protected=jnp.zeros(u.shape, bool), valid=jnp.ones(u.shape, bool), pos=pos)
    budget = AcrossModel()(ranking, jnp.array([2]))
    np.testing.assert_array_equal(budget[:, 0, 0], [3, 1])
    keep = kvjax.select.TopK()(ranking, budget)
    np.testing.assert_array_equal(np.flatnonzero(keep[1]), [2])
    want = slow.best_of_all({(0, 0): np.asarray(u[0, 0, 0]), (1, 0): np.asarray(u[1, 0, 0])}, 4)
    assert want == {(0, 0): [0, 1, 2], (1, 0): [2]}


def test_the_worked_loss():
    np.testing.assert_allclose(slow.retained(np.log(BETA[0]))[2] + slow.retained(np.log(BETA[1]))[2], 3.65, atol=1e-9)
    np.testing.assert_allclose(slow.hinge(np.log(BETA), 1)[2], 0.825, atol=1e-9)


def test_a_shared_projection_is_one_for_every_layer():
    down = jax.tree.map(lambda w: np.stack([w] * 3), WEIGHTS["down"])
    assert kvjax.methods.make_each_token_count({**WEIGHTS, "down": down}, budget=BUDGET, buffer=BUFFER) == POLICY
    own = jax.tree.map(lambda w: w * np.arange(1, 4).reshape(3, *[1] * (w.ndim - 1)), down)
    assert kvjax.methods.make_each_token_count({**WEIGHTS, "down": own}, budget=BUDGET, buffer=BUFFER) != POLICY
