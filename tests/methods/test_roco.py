"""RoCo: its worked example, its authors' numbers, and the transcription on the toy model, prompt and 64 steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.evidence import Evidence
from kvjax.score import SteadyMean
from kvjax.score.steady_mean import Sums, mean_and_deviation
from kvjax.select import SparedFirst, TopK
from kvjax.select.spared import spared
from kvjax.view import LayerView, Ranking
from tests.conftest import ids_of
from tests.methods.simulation import decodes_as, prefilled, prompt_arrays
from tests.reference import roco
from tests.reference.golden_methods import load

BUDGET, TAIL = 24, 5


def of(x):
    return jnp.asarray(x, jnp.float32)[None, None]


def test_e5():
    mu, sd = mean_and_deviation(of([1.0, 0.6, 0.3, 0.5, 0.2]), of([0.25, 0.09, 0.12, 0.13, 0.04]), jnp.asarray([[[5, 4, 3, 2, 1]]]))
    np.testing.assert_allclose(mu[0, 0], [0.2, 0.15, 0.1, 0.25, 0.2], atol=1e-6)
    np.testing.assert_allclose(sd[0, 0, :4], [0.1, 0, 0.1732, 0.05], atol=2e-4)
    free = jnp.arange(5)[None, None] < 4
    u = spared(mu, sd, free, jnp.asarray([[3]], jnp.int32))[0, 0]
    assert int(u.argmin()) == 1 and int(mu[0, 0, :4].argmin()) == 2
    assert (u[jnp.asarray([2, 4])] >= 1).all()


def test_negative_variances_are_clipped():
    assert mean_and_deviation(of([0.3]), of([0.02]), jnp.asarray([[[3]]]))[1][0, 0, 0] == 0


def test_ties_go_to_the_lower_position():
    even = of([0.1] * 4)
    u = spared(even, even, jnp.ones((1, 1, 4), bool), jnp.asarray([[3]], jnp.int32))
    assert (u[0, 0] < 1).tolist() == [True, True, True, False]


@pytest.mark.parametrize("layer", range(2))
@pytest.mark.parametrize("head", range(3))
def test_golden(layer, head):
    z = load("roco")
    budget, attention = int(z["budget"]), z["attn_per_step"][:, layer, head]
    held, s1, s2, evictions = np.zeros(0, int), np.zeros(0), np.zeros(0), []
    for t, row in enumerate(attention):
        held, s1, s2 = np.append(held, t), np.append(s1, 0), np.append(s2, 0)
        s1, s2 = s1 + row[: len(held)], s2 + row[: len(held)] ** 2
        if len(held) <= budget:
            continue
        mu, sd = mean_and_deviation(of(s1), of(s2), jnp.asarray(t + 1 - held)[None, None])
        free = jnp.arange(len(held))[None, None] < len(held) - 10
        feasible = jnp.asarray([[budget - int(z["recent_window"])]], jnp.int32)
        u = np.where(free, spared(mu, sd, free, feasible), np.inf)[0, 0]
        gone = len(u) - 1 - int(u[::-1].argmin())
        evictions.append(gone)
        held, s1, s2 = (np.delete(x, gone) for x in (held, s1, s2))
    assert evictions == z["evicted_slot"][:, layer, head].astype(int).tolist()
    np.testing.assert_array_equal(held, z["kept_token_ids"][layer, head])


def kept_of(mu, sd, *, budget, **score):
    """What a prompt of these means and deviations keeps, by SteadyMean(tail=1, **score)."""
    n, rule = len(mu), SteadyMean(tail=1, **score)
    c = n - np.arange(n)
    sums = Sums(s1=of(mu * c), s2=of((sd**2 + mu**2) * c), pinned=of(np.zeros(n)))
    view = LayerView.of_prompt(jnp.asarray([n]), (1, 1, n), state=sums)
    seen, select = Evidence(data={}, length=view.length, rope=None), SparedFirst(TopK(sinks=rule.sinks, recent=1))
    scores, budget = rule.score(view, seen), jnp.asarray([[[budget]]])
    ranking = Ranking(
        scores=scores[None], protected=select.protected(view, budget[0])[None], valid=view.valid[None], pos=view.pos[None],
        second=jax.tree.map(lambda x: x[None], rule.second(view, seen, scores)),
    )  # fmt: skip
    return np.flatnonzero(select(ranking, budget)).tolist()


def test_a_share_of_the_budget_is_spared_not_of_the_prompt():
    """Means rise with the position, 8, 9 and 10 waver. At b = 5 int(0.4 b) + 1 = 3 of 20 are not feasible: the tail and the two
    that waver most; the highest means fill the rest. A share of the prompt would spare 8 and leave nothing to the means."""
    mu, sd = np.arange(1, 21) / 100, np.zeros(20)
    sd[[8, 9, 10]] = 0.3, 0.2, 0.1
    assert kept_of(mu, sd, budget=5, prompt_recent=0.4) == [8, 9, 17, 18, 19]
    assert kept_of(mu, sd, budget=5) == [15, 16, 17, 18, 19]
    assert kept_of(mu, sd, budget=10) == [8, *range(11, 20)]
    assert kept_of(mu, sd, budget=10, sinks=2) == [0, 1, 8, *range(13, 20)]


class CountingFromThePrompt(roco.Decoding):
    """The prompt counts, and is cut at once, a tenth of the budget spared."""

    def prefill(self, a):
        n = a.shape[-1]
        self.generated = np.arange(n)
        self.statistics.append(n)
        for t in range(n):
            self.statistics.see(a[:, t].mean(axis=0), t + 1)
        guarded = (np.arange(n) >= n - self.tail) | (np.arange(n) < 0)
        feasible = roco.feasible_at_once(n, self.budget, sinks=0)
        gone = roco.evicted(self.statistics.mean(), self.statistics.spread(), guarded, feasible, n - self.budget)
        stay = np.setdiff1d(np.arange(n), gone)
        self.generated = self.generated[stay]
        self.statistics.take(stay)


@pytest.fixture(scope="module")
def layers(lm, prompt):
    return prompt_arrays(lm, prompt)


def test_64_steps_beside_a_pinned_prompt(lm, pre, layers):
    """The release's decoding: the prompt and 16 generated tokens."""
    policy = kvjax.methods.roco(budget=90 + 16, tail=TAIL, pin_prompt=True)
    rules = prefilled(layers, lambda layer, head: roco.Decoding(16, tail=TAIL))
    decodes_as(lm, pre, policy, layers, rules, ids_of(64, 3))


@pytest.mark.parametrize("budget", [40, 89, 0.5])
def test_a_pinned_prompt_has_to_fit(lm, budget):
    """Else its latest tokens would go at the first step, to make room for the generated tail."""
    policy = kvjax.methods.roco(budget=budget, pin_prompt=True)
    with pytest.raises(ValueError, match="keeps the 90 tokens of a prompt whole: give a budget of slots"):
        policy.check(lm.decoder, 90)
    policy.replace(budget=100).check(lm.decoder, 90)


def test_prompt_and_64_steps(lm, pre, layers):
    policy = kvjax.methods.roco(budget=BUDGET + 20, tail=TAIL, sinks=0)
    rules = prefilled(layers, lambda layer, head: CountingFromThePrompt(BUDGET + 20, tail=TAIL))
    decodes_as(lm, pre, policy, layers, rules, ids_of(64, 3))


def test_scores_of_the_prompt(pre, layers):
    scored = kvjax.score_prompt(pre, kvjax.methods.roco(budget=BUDGET)).rows[0]
    for layer, x in enumerate(layers):
        a = x.rows().mean(1)
        state = scored.state[layer]
        np.testing.assert_allclose(state.s1[0, :, :90], a.sum(1), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(state.s2[0, :, :90], (a**2).sum(1), rtol=1e-5, atol=1e-5)
