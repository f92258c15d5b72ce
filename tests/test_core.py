"""The pure core: compiled, mapped over budgets and differentiated whole, it gives what the ordinary calls give."""

from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import kvjax
from kvjax import core
from kvjax.budget import whole_share
from kvjax.codec import AsIs, Transformed
from kvjax.encode import OnHost, Stored
from kvjax.retrieve import MaskHeads
from kvjax.stage import Merger
from tests.conftest import ids_of, policy_of
from tests.decode_loop import unchecked

STEPS = 6
slow = partial(pytest.param, marks=pytest.mark.slow)
BUDGETS = [1, 7, 24, 40, 63, 89, 90, 1000]


def run(lm, pre, policy, *, slots, steps=STEPS):
    """(tokens, logits) of the whole path; to be traced."""
    return core.decode(lm.params, lm.decoder, policy, core.compress(pre, policy, slots=slots), steps=steps)[:2]


def ordinary(lm, pre, policy, steps=STEPS):
    return kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=steps, stop=(), return_logits=True)


@pytest.mark.parametrize("name", ["full", "snapkv", "trim_kv", slow("duo_attention"), slow("d2o")])
def test_one_program_gives_what_the_ordinary_calls_give(lm, pre, name):
    policy = policy_of(name)
    want = ordinary(lm, pre, policy)
    tokens, logits = jax.jit(lambda policy: run(lm, pre, policy, slots=96))(policy)
    np.testing.assert_array_equal(tokens, want.tokens)
    np.testing.assert_allclose(logits, want.logits, atol=2e-5)


def test_disabled_heads_are_read_round_in_the_core_too(lm, pre):
    mask = np.array([[1, 0, 0, 0], [0, 1, 1, 0], [1, 1, 0, 0]], bool)
    policy = policy_of("full").replace(retrieve=MaskHeads(mask))
    want, (tokens, logits) = ordinary(lm, pre, policy), jax.jit(lambda: run(lm, pre, policy, slots=96))()
    np.testing.assert_array_equal(tokens, want.tokens)
    np.testing.assert_allclose(logits, want.logits, atol=2e-5)
    assert np.abs(want.logits - ordinary(lm, pre, policy_of("full")).logits).max() > 1e-3


@pytest.mark.parametrize("name", ["adakv", slow("streaming_llm")])
def test_eight_budgets_at_once_are_eight_calls(lm, pre, name):
    policy = policy_of(name, 40)
    at = lambda budget: run(lm, pre, policy.replace(budget=budget), slots=96)  # noqa: E731
    tokens, logits = jax.jit(jax.vmap(at))(jnp.asarray(BUDGETS))
    for i, budget in enumerate(BUDGETS):
        want = ordinary(lm, pre, policy.replace(budget=budget))
        np.testing.assert_array_equal(tokens[i], want.tokens)
        np.testing.assert_allclose(logits[i], want.logits, atol=2e-5)


def test_rows_of_different_lengths(lm):
    policy = policy_of("snapkv", 20)
    pre = kvjax.prefill(lm, [ids_of(70, 1), ids_of(9, 2)], needs=policy)
    want = ordinary(lm, pre, policy)
    tokens, logits = jax.jit(lambda pre: run(lm, pre, policy, slots=32))(pre)
    np.testing.assert_array_equal(tokens, want.tokens)
    np.testing.assert_allclose(logits, want.logits, atol=2e-5)


def test_a_head_without_a_slot_left_has_no_logits(lm):
    policy = kvjax.methods.knorm(budget=14)
    pre = kvjax.prefill(lm, [ids_of(60, 1), ids_of(8, 2)], needs=policy)
    whole = jax.jit(lambda pre, policy: run(lm, pre, policy, slots=16, steps=4))
    logits = whole(pre, policy)[1]
    assert jnp.isfinite(logits[0, :3]).all() and jnp.isnan(logits[0, 3]).all()  # two tokens fit behind fourteen
    assert jnp.isfinite(logits[1]).all()
    logits = whole(pre, policy.replace(budget=17))[1]
    assert jnp.isnan(logits[0]).all() and jnp.isfinite(logits[1]).all()


def test_given_tokens_are_fed(lm, pre):
    policy, fed = kvjax.methods.full(), jnp.asarray([ids_of(3, 9)], jnp.int32)
    cache = core.compress(pre, policy, slots=96)
    tokens, logits, after = core.decode(lm.params, lm.decoder, policy, cache, steps=3, tokens=fed)
    want = kvjax.extend(lm, kvjax.compress(pre, policy), fed[0].tolist(), policy, return_logits=True)
    np.testing.assert_array_equal(tokens, fed)
    np.testing.assert_allclose(logits[0, 1:], want.logits[0, :2], atol=2e-5)
    np.testing.assert_allclose(after.logits, want.cache.logits, atol=2e-5)


@struct.dataclass
class ScoreBias(Merger):
    """A user's soft selection: power · ln(score) is added to the attention of every slot that stays."""

    biased: ClassVar[bool] = True
    power: float = 0.5

    def __call__(self, view, keep, scores, memory):
        return view.replace(bias=view.bias + self.power * jnp.log(jnp.maximum(scores, 1e-20))), memory


def soft(eps, power, when):
    """Expected Attention as weights; who stays depends on the position alone, so that the loss is smooth."""
    score = kvjax.score.ExpectedAttention(future=64, eps=eps)
    select = kvjax.select.TopK(recent=40)
    return kvjax.Policy(score=score, select=select, merge=ScoreBias(power), when=when, budget=40)


@pytest.mark.parametrize("when", [kvjax.AfterPrefill(), slow(kvjax.Every(1))], ids=["after prefill", "every step"])
def test_gradients_of_a_decoded_loss_are_central_differences(lm, pre, when):
    fed = jnp.asarray([ids_of(3, 9)], jnp.int32)

    def loss(eps, power):
        policy = soft(eps, power, when)
        cache = core.compress(pre, policy, slots=48)
        return (core.decode(lm.params, lm.decoder, policy, cache, steps=3, tokens=fed)[1][:, 1:] ** 2).mean()

    at, (eps, power), h = jax.jit(loss), (0.05, 0.5), 5e-3
    with unchecked():  # names stand where arrays are declared while a program is taken apart
        slope = jax.jit(jax.grad(loss, (0, 1)))(eps, power)
    numeric = (at(eps + h, power) - at(eps - h, power)) / (2 * h), (at(eps, power + h) - at(eps, power - h)) / (2 * h)
    assert all(abs(x) > 1e-4 for x in slope)
    np.testing.assert_allclose(slope, numeric, rtol=2e-2)


@pytest.mark.parametrize("most", [1000, 4096])
def test_a_share_in_thousandths_is_rounded_down_as_the_decimal_it_is(most):
    lengths, thousandths = np.arange(most - 999, most + 1)[:, None], np.arange(1, 1001)
    got = jax.jit(whole_share)(jnp.asarray(lengths, jnp.int32), jnp.asarray(thousandths / 1000, jnp.float32))
    np.testing.assert_array_equal(got, lengths * thousandths // 1000)


def test_shares_are_the_slots_they_are_in_the_ordinary_calls(lm):
    pre, policy = kvjax.prefill(lm, ids_of(90), needs=kvjax.methods.knorm()), kvjax.methods.knorm()
    shares = [0.01, 0.1, 0.3, 0.33, 0.5, 0.7, 0.9, 1.0]
    at = lambda share: core.compress(pre, policy.replace(budget=share), slots=96).length  # noqa: E731
    got = jax.jit(jax.vmap(at))(jnp.asarray(shares))
    for share, lengths in zip(shares, got, strict=True):
        np.testing.assert_array_equal(lengths, kvjax.compress(pre, policy.replace(budget=share)).lengths)


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (policy_of("heterocache"), "PivotRefresh keeps a state that is made on the host"),
        (policy_of("full").replace(encode=Stored(placement=OnHost())), "keeps values on the device; got placement=OnHost"),
    ],
)
def test_what_the_core_does_not_do_is_refused(pre, policy, told):
    with pytest.raises(ValueError, match=told):
        core.compress(pre, policy, slots=96)


@pytest.mark.parametrize("budget, slots, mean", [(16, 4, 16), (1000, 89, 90), (0.5, 44, 45), (np.int64(16), 15, 16)])
def test_a_budget_above_the_slots_is_refused_where_it_is_known(pre, budget, slots, mean):
    """A prompt of 90 tokens: 0.5 of them is 45 slots, 1,000 are 90."""
    policy = policy_of("snapkv").replace(budget=budget)
    told = f"a prompt of 90 tokens leaves {mean} slots per KV head under a budget of {budget}, more than slots={slots}: give more"
    with pytest.raises(ValueError, match=told):
        core.compress(pre, policy, slots=slots)
    with pytest.raises(ValueError, match=told):
        jax.jit(lambda: core.compress(pre, policy, slots=slots))()
    assert (core.compress(pre, policy, slots=mean).length == mean).all()


def test_a_prompt_that_is_kept_for_now_needs_a_slot_a_token(pre):
    policy = policy_of("h2o").replace(budget=16, when=kvjax.Every(1, after_prefill=False))
    with pytest.raises(ValueError, match="90 tokens leaves 90 slots per KV head under a budget of 16, more than slots=64"):
        core.compress(pre, policy, slots=64)


def test_a_traced_budget_above_the_slots_gives_nan(pre):
    policy = policy_of("snapkv")
    cut = jax.jit(lambda budget: core.compress(pre, policy.replace(budget=budget), slots=16).logits)
    assert jnp.isfinite(cut(16)).all() and jnp.isnan(cut(17)).all()


@pytest.mark.parametrize("slots", ["x", 0, -3, 2.5, True, None])
def test_slots_that_are_none(pre, slots):
    with unchecked(), pytest.raises(ValueError, match="slots is the most slots a KV head may hold, an integer of at least 1; got "):
        core.compress(pre, policy_of("snapkv"), slots=slots)


def turned(policy):
    """Keys of both heads as one code, by an orthonormal basis: those of a token are what they were."""
    basis = np.stack([np.linalg.qr(np.random.default_rng(layer).normal(size=(32, 32)))[0] for layer in range(3)]).astype(np.float32)
    return policy.replace(encode=Stored(keys=Transformed(AsIs(), basis=basis, mean=np.zeros((3, 32), np.float32), origin="toy")))


def test_codes_of_all_heads_need_heads_that_hold_as_many(lm, pre):
    even, uneven = policy_of("snapkv", 24), policy_of("adakv", 24)
    want = run(lm, pre, even, slots=64)
    np.testing.assert_allclose(run(lm, pre, turned(even), slots=64)[1], want[1], atol=2e-5)
    assert jnp.isfinite(run(lm, pre, uneven, slots=64)[1]).all()
    assert jnp.isnan(run(lm, pre, turned(uneven), slots=64)[1]).all()


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (turned(policy_of("h2o")), "Every evicts slots one by one while decoding"),
        (policy_of("h2o").replace(select=kvjax.select.Runs()), "Runs reads a second ranking"),
        (policy_of("snapkv").replace(select=kvjax.select.EachChunk(size=8), when=kvjax.WhenFull(2)), "may leave more slots"),
    ],
)
def test_stages_that_do_not_go_together_are_refused_here_too(pre, policy, told):
    for compress in (lambda: kvjax.compress(pre, policy), lambda: core.compress(pre, policy, slots=96)):
        with pytest.raises(ValueError, match=told):
            compress()
    with pytest.raises(ValueError, match=told):
        jax.jit(lambda budget: core.compress(pre, policy.replace(budget=budget), slots=96))(24)


def taken(name: str) -> bool:
    """Whether the core does a method."""
    try:
        core.check_stages(policy_of(name))
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("name", [name for name in kvjax.methods.names() if taken(name)])
def test_the_policy_of_every_method_may_be_traced(lm, name):
    """All its numbers are data."""
    policy = policy_of(name, 12)
    pre = kvjax.prefill(lm, ids_of(30, 1), needs=frozenset(need for need in policy.needs if not need.second_pass))
    pre = kvjax.second_pass(lm, pre, policy)
    assert jax.eval_shape(lambda policy: core.compress(pre, policy, slots=48).length, policy).shape == (3, 1, 2)


def test_numbers_of_evidence_are_compared_where_they_are_known(pre):
    one, other = (kvjax.evidence.AttentionStatistics(kvjax.evidence.Tempered(seed=seed)) for seed in (0, 1))
    assert one.serves(one) and not one.serves(other) and one != other
    assert not one.serves(kvjax.evidence.AttentionStatistics(kvjax.evidence.Tempered(seed=None)))
    policy = policy_of("keyformer", 24)
    want = core.compress(pre, policy, slots=96)
    got = jax.jit(lambda policy: core.compress(pre, policy, slots=96))(policy)
    np.testing.assert_array_equal(got.pos, want.pos)


def test_evidence_that_is_not_there_is_named(lm):
    pre = kvjax.prefill(lm, ids_of(40), needs=kvjax.methods.full())
    with pytest.raises(ValueError, match="did not record ColumnSums"):
        core.compress(pre, policy_of("h2o"), slots=96)
