"""TRIM-KV against its transcription: gate, prompt and decode steps, worked examples, rows of a batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.evidence import Evidence, GateValues, HiddenStates
from kvjax.gates import RetentionGate, init_gate
from kvjax.score import Retention
from kvjax.view import LayerView
from tests.conftest import ids_of
from tests.eager import run_steps
from tests.method_cases import retention_gate
from tests.reference import trim_kv

BUDGET, BUFFER, STEPS = 24, 5, 64
WEIGHTS = retention_gate()
NOTHING = Evidence(data={}, length=jnp.zeros(1, jnp.int32), rope=None)
POLICY = kvjax.methods.trim_kv(WEIGHTS, budget=BUDGET, buffer=BUFFER)


def log_beta(x, layer):
    """[h, t] of the attention inputs x [t, e], float64."""
    up, down = ({name: w[layer].astype(np.float64) for name, w in WEIGHTS[part].items()} for part in ("up", "down"))
    return trim_kv.gate(np.asarray(x, np.float64), up["kernel"], up["bias"], down["kernel"], down["bias"]).T


@pytest.fixture(scope="module")
def prompted(lm, prompt):
    """The prompt with the inputs of every layer's attention beside the gate's values."""
    return kvjax.prefill(lm, prompt, needs=POLICY.needs | {HiddenStates()})


@pytest.fixture(scope="module")
def decoded(lm, prompted):
    cache = kvjax.compress(prompted, POLICY)
    return kvjax.decode(lm, cache, POLICY, max_new_tokens=STEPS, stop=(), return_logits=True)


class Transcribed:
    """Every head of the toy model under the transcription, fed the prompt."""

    def __init__(self, pre, **arguments):
        self.heads = {at: trim_kv.Head(16, budget=BUDGET, buffer=BUFFER, **arguments) for at in np.ndindex(3, 2)}
        row = pre.rows[0]
        for layer in range(3):
            k, v = np.asarray(row.k[layer])[0, :, :90], np.asarray(row.v[layer])[0, :, :90]
            self.feed(layer, np.zeros((2, 2, 90, 16)), k, v, np.asarray(row.evidence[layer].hidden_states())[0, :90])

    def feed(self, layer, q, k, v, x):
        gates = log_beta(x, layer)
        return np.stack([self.heads[layer, h].extend(q[h], k[h], v[h], gates[h])[0] for h in range(2)])

    def attend(self, layer, inputs):
        q, k, v, x = (np.asarray(a)[0] for a in (inputs.q, inputs.k, inputs.v, inputs.x))
        return self.feed(layer, q, k, v, x)[:, :, 0]


def same_slots(cache, rule, row=0):
    for (layer, h), head in rule.heads.items():
        np.testing.assert_array_equal(cache.kept(layer)[row][h], head.held.pos)


def test_the_gate_is_its_formula_in_prompt_and_steps(lm, prompted):
    for layer in range(3):
        evidence = prompted.rows[0].evidence[layer]
        got = evidence.of(POLICY.score.gate)[0, :, :90]
        np.testing.assert_allclose(got, log_beta(evidence.hidden_states()[0, :90], layer), rtol=1e-5, atol=1e-6)
        assert got.dtype == jnp.float32


def test_prompt_and_64_steps_are_the_transcription(lm, prompted, decoded):
    rule = Transcribed(prompted)
    same_slots(kvjax.compress(prompted, POLICY), rule)
    want = run_steps(lm, decoded.tokens[0], start=90, attend=rule.attend)
    np.testing.assert_allclose(decoded.logits[0, 1:], want[:-1], atol=1e-5)
    np.testing.assert_allclose(decoded.cache.logits[0], want[-1], atol=1e-5)
    same_slots(decoded.cache, rule)


def test_recent_tokens_stay_if_asked(lm, prompted):
    policy, rule = POLICY.replace(select=kvjax.select.TopK(recent=6)), Transcribed(prompted, recent=6)
    out = kvjax.decode(lm, kvjax.compress(prompted, policy), policy, max_new_tokens=16, stop=(), return_logits=True)
    want = run_steps(lm, out.tokens[0], start=90, attend=rule.attend)
    np.testing.assert_allclose(out.cache.logits[0], want[-1], atol=1e-5)
    same_slots(out.cache, rule)


def test_every_slot_carries_its_own_tokens_gate(lm, prompted):
    """Rows that read three tokens, one and none at once: the state of each slot is the gate's value of the token in it."""
    ids = [ids_of(n, seed=n) for n in (60, 41, 30)]
    more = [[5, 9, 2], [7], []]
    cache = kvjax.compress(kvjax.prefill(lm, ids, needs=POLICY), POLICY)
    cache = kvjax.extend(lm, cache, more, POLICY).cache
    whole = kvjax.prefill(lm, [a + b for a, b in zip(ids, more, strict=True)], needs=POLICY)
    assert [int(n) for n in cache.lengths[0, :, 0]] == [BUDGET + 3, BUDGET + 1, BUDGET]
    for layer, row, h in np.ndindex(1, 3, 2):  # the first layer reads what the full cache would give it
        at = int(cache.start[layer, row, h]) + np.arange(cache.lengths[layer, row, h])
        want = whole.rows[row].evidence[layer].of(POLICY.score.gate)[0, h, np.asarray(cache.pos)[at]]
        np.testing.assert_allclose(cache.state.score[at], want, atol=1e-6)


def test_a_row_decodes_as_alone(lm):
    prompts = [ids_of(n, seed=n) for n in (90, 5, 33)]
    cache = kvjax.compress(kvjax.prefill(lm, prompts, needs=POLICY), POLICY)
    batch = kvjax.decode(lm, cache, POLICY, max_new_tokens=12, stop=(), return_logits=True)
    for r, ids in enumerate(prompts):
        cache = kvjax.compress(kvjax.prefill(lm, ids, needs=POLICY), POLICY)
        alone = kvjax.decode(lm, cache, POLICY, max_new_tokens=12, stop=(), return_logits=True, pool_budget=90)
        np.testing.assert_array_equal(batch.tokens[r], alone.tokens[0])
        np.testing.assert_allclose(batch.logits[r], alone.logits[0], atol=3e-5)
        for layer, h in np.ndindex(3, 2):
            np.testing.assert_array_equal(batch.cache.kept(layer)[r][h], alone.cache.kept(layer)[0][h])


def test_a_slot_costs_a_gate_value_more(prompted):
    cache = kvjax.compress(prompted, POLICY)
    assert cache.slot_nbytes == 2 * 16 * 4 + 2 + 4
    assert cache.slot_nbytes - 2 == trim_kv.trim_nbytes(1, 16, element=4) - 4  # positions of two bytes, not four


@pytest.mark.parametrize(("now", "want"), [(10, [-1.7877, -1.3863]), (11, [-1.9502, -2.0794])])
def test_the_order_turns_with_age(now, want):
    """Token A, beta 0.85, born at 0; token B, beta 0.5, born at 9."""
    state, pos = jnp.log(jnp.array([[[0.85, 0.5]]])), jnp.array([[[0, 9]]])
    view = LayerView(k=None, v=None, pos=pos, valid=pos >= 0, length=jnp.array([now]), state=state)
    np.testing.assert_allclose(POLICY.score.score(view, NOTHING)[0, 0], want, atol=5e-5)


def test_the_worked_scores_and_who_stays():
    state, pos = jnp.log(jnp.array([[[1, 0.5, 0.25, 0.9]]])), jnp.arange(4)[None, None]
    view = LayerView(k=None, v=None, pos=pos, valid=pos >= 0, length=jnp.array([4]), state=state)
    got = POLICY.score.score(view, NOTHING)[0, 0]
    np.testing.assert_allclose(got, [0, -2.772589, -4.158883, -0.210721], atol=5e-7)
    assert sorted(np.argsort(-got)[:2].tolist()) == [0, 3]


def test_the_newest_token_is_among_those_seen():
    """Three tokens seen: the one at 0 has decayed by the fourth power, the one at 2 by the second."""
    state, pos = jnp.log(jnp.array([[[0.77, 0.5]]])), jnp.array([[[0, 2]]])
    view = LayerView(k=None, v=None, pos=pos, valid=pos >= 0, length=jnp.array([3]), state=state)
    np.testing.assert_allclose(POLICY.score.score(view, NOTHING)[0, 0], [-1.045459, -1.386294], atol=1e-6)


@pytest.mark.parametrize("bias", [10.0, 18.0])
def test_an_untrained_gate_keeps_almost_everything(lm, bias):
    gate = RetentionGate(heads=2, bias=bias)
    weights = init_gate(gate, jax.random.key(0), lm.decoder)
    assert weights["up"]["kernel"].shape == (3, 64, 512) and not np.array_equal(*weights["up"]["kernel"][:2])
    got = gate.apply({"params": jax.tree.map(lambda w: w[1], weights)}, jax.random.normal(jax.random.key(1), (1, 5, 64)))
    np.testing.assert_allclose(got, np.full((1, 2, 5), -np.exp(-bias)), rtol=0.3)


def test_weights_of_another_model_are_refused(lm):
    wide = jax.tree.map(lambda w: np.concatenate([w, w]), WEIGHTS)
    policy = kvjax.methods.trim_kv(wide, budget=BUDGET)
    with pytest.raises(ValueError, match=r"RetentionGate are not this model's .*up.kernel: \(3, 64, 24\) wanted, \(6, 64, 24\)"):
        kvjax.compress(kvjax.prefill(lm, ids_of(40), needs=POLICY), policy)


def test_two_gates_are_two_needs_and_one_gate_is_one():
    other = kvjax.methods.trim_kv(retention_gate(1), budget=BUDGET, buffer=BUFFER)
    again = kvjax.methods.trim_kv(jax.tree.map(np.copy, WEIGHTS), budget=BUDGET, buffer=BUFFER)
    assert again == POLICY and hash(again) == hash(POLICY) and again.needs == POLICY.needs
    assert other != POLICY and len(other.needs | POLICY.needs) == 2


def test_gates_of_two_methods_are_recorded_in_one_prefill(lm, prompt):
    other = kvjax.methods.trim_kv(retention_gate(1), budget=BUDGET, buffer=BUFFER)
    both, own = kvjax.prefill(lm, prompt, needs=[POLICY, other]), kvjax.prefill(lm, prompt, needs=other)
    for layer in range(3):
        a, b = (pre.rows[0].evidence[layer].of(other.score.gate) for pre in (both, own))
        np.testing.assert_array_equal(a, b)


def test_the_score_trains_through_the_code_that_serves_it(lm, prompted):
    """The gradient of a loss of the scores with respect to the gate's weights agrees with central differences."""
    x = prompted.rows[0].evidence[1].hidden_states()[:, :90]
    gate, pos = RetentionGate(heads=2, hidden=24), jnp.broadcast_to(jnp.arange(90), (1, 2, 90))

    def loss(weights):
        state = gate.apply({"params": weights}, x)
        view = LayerView(k=None, v=None, pos=pos, valid=pos >= 0, length=jnp.array([90]), state=state)
        return (jnp.exp(Retention(GateValues.of(gate, WEIGHTS)).score(view, NOTHING)) ** 2).mean()

    here = jax.tree.map(lambda w: jnp.asarray(w[1]), WEIGHTS)
    slope, h = jax.grad(loss)(here), 1e-2
    bias = here["down"]["bias"]
    for at in range(2):
        moved = [{**here, "down": {**here["down"], "bias": bias.at[at].add(step)}} for step in (h, -h)]
        numeric = (loss(moved[0]) - loss(moved[1])) / (2 * h)
        np.testing.assert_allclose(slope["down"]["bias"][at], numeric, rtol=1e-2)
