"""FastGen against its reference: the worked example, a published implementation's numbers, prompts, decoding."""

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import kvjax
from kvjax.evidence import Evidence
from kvjax.evidence.reduce import RowsAt
from kvjax.head_rules import Rule, RuleList, occurrences
from kvjax.methods.fastgen import published_rules
from kvjax.view import LayerView
from tests.conftest import ids_of
from tests.methods.inputs import layers_of
from tests.methods.simulate import attend, simulate
from tests.reference import fastgen
from tests.reference.test_examples_fastgen import ROWS, golden

KINDS = dict(special=((5, 9), (17,)), punctuation=(3, 40, 41, 60, 99))


def seen(rules: RuleList, a: np.ndarray, ids) -> tuple[LayerView, Evidence]:
    """What the rules see of group means [h, n, n] and token ids."""
    h, n = a.shape[:2]
    p, at = jnp.asarray(a, jnp.float32)[None, :, None], jnp.arange(n, dtype=jnp.int32)
    length = jnp.array([n])
    where = RowsAt(keys=jnp.broadcast_to(at, (1, h, n)), steps=jnp.zeros((1, n), jnp.int32), prompt=length)
    ids = jnp.asarray(ids, jnp.int32)[None]
    data = {"column_sums": p.sum(3), rules.marks.key: jnp.isin(ids, jnp.asarray(rules.punctuation))}
    for share in {rule.window for rule in rules.rules if rule.window}:
        need = rules.near(share)
        data[need.key] = need.reduction.of_rows_at(p, at[None], p > 0, where)
    view = LayerView.of_prompt(length, (1, h, n), ids=ids)
    return view, Evidence(data=data, length=length, rope=None)


def a1(new: int, threshold: float = 0.9) -> RuleList:
    rules = published_rules(heavy=0.15, window=0.3)
    return RuleList(rules, special=((1,),), punctuation=(3,), sinks=1, threshold=threshold, new=new, split=True)


A1 = np.array([row + [0.0] * (6 - len(row)) for row in ROWS])[None]


def test_a1_recovery():
    rules = a1(0)
    found = [float(rules.fill(rule, *seen(rules, A1, range(6))).recovery[0, 0]) for rule in rules.rules]
    assert_allclose(found, [0.65, 0.783333, 0.933333, 0.983333, 1], atol=1e-6)


@pytest.mark.parametrize("threshold, rule", [(0.9, 2), (0.95, 3), (1.0, 4)])
def test_a1_choice(threshold, rule):
    rules = a1(0, threshold)
    assert int(rules.chosen(*seen(rules, A1, range(6)))[0][0, 0]) == rule


@pytest.mark.parametrize("new, kept", [(0, [0, 1, 2, 3]), (4, [0, 1, 2, 3, 4])])
def test_a1_fill(new, kept):
    rules = a1(new)
    members = rules.chosen(*seen(rules, A1, range(6)))[1].members[0, 0]
    assert np.flatnonzero(members).tolist() == kept


def test_golden():
    z, prompt, _ = golden()
    listed = published_rules(heavy=float(z["heavy_hitter_frac"]), window=float(z["recent_window"]))
    rules = RuleList(
        listed, special=((1,), (2, 3)), punctuation=(5, 6, 7), sinks=int(z["global_tokens"]), threshold=float(z["min_recovery"])
    )  # fmt: skip
    view, evidence = seen(rules, prompt.a, z["input_ids"])
    recovery = [rules.fill(rule, view, evidence).recovery[0] for rule in listed]
    assert_allclose(recovery, z["recovery"], atol=1e-6)
    chosen, fill = rules.chosen(view, evidence)
    assert_array_equal(chosen[0], z["strategy"])
    assert_array_equal(fill.members[0], z["fill_mask"] == 1)


def test_exact_sequences_only():
    ids = jnp.array([[2, 3, 2, 2, 3, 1, 2, 3]])
    assert_array_equal(occurrences(ids, jnp.array([7]), (2, 3))[0], [True, True, False, True, True, False, False, False])


def prompt_of(layer, ids, sinks=4):
    """The reference's prompt of one layer."""
    special = fastgen.occurrences(np.array(ids), [5, 9]) | fastgen.occurrences(np.array(ids), [17])
    return fastgen.Prompt(layer.rows().mean(1), special, np.isin(ids, KINDS["punctuation"]), sinks)


def strategies(rules) -> list[fastgen.Strategy]:
    return [fastgen.Strategy(rule.punctuation, rule.heavy, rule.window, rule.full) for rule in rules]


class AfterReading(fastgen.Decoding):
    """A token attends to what is held and to itself; then one goes, or the new one."""

    def step(self, a, t, punctuation):
        attended = np.append(self.held, t)
        self.seen[t], keeps = [], punctuation and self.rule.punctuation
        self.see(a, attended)
        self.held = attended
        self.budget += keeps
        self.kinds = self.kinds | {t} if keeps else self.kinds
        if len(self.held) > self.budget and not self.rule.full:
            victim = self.victim(t)
            self.held = self.held[self.held != (t if victim is None else victim)]


class Layer:
    """One layer of heads under rules, in NumPy."""

    def __init__(self, layer, heads, ids):
        self.k, self.v, self.heads, self.marks = layer.k, layer.v, heads, dict(enumerate(ids))

    def step(self, q, k, v, at):
        self.k, self.v = np.concatenate([self.k, k[:, None]], 1), np.concatenate([self.v, v[:, None]], 1)
        out = []
        for h, head in enumerate(self.heads):
            held = np.append(head.held, at)
            z = q[h].astype(np.float64) @ self.k[h, held].T / np.sqrt(q.shape[-1])
            p = np.exp(z - z.max(-1, keepdims=True))
            out.append(attend(q[h], self.k[h, held], self.v[h, held]))
            head.step(p / p.sum(-1, keepdims=True), at, self.marks[at] in KINDS["punctuation"])
        return np.stack(out)


def decoding(prompt, head, rule, new):
    made = fastgen.decoding(prompt, head, rule, new)
    after = AfterReading(made.rule, made.held, made.kinds, max(made.budget, len(made.held)), made.extent, made.cum)
    after.budget = max(made.budget, len(made.held))
    return after


def in_ids(seed: int) -> list[int]:
    """A prompt with sequences of special tokens and punctuation in it."""
    ids = ids_of(90, seed)
    ids[20:22], ids[50], ids[61], ids[30], ids[31] = [5, 9], 17, 3, 40, 5
    return ids


def test_every_rule_of_the_list_on_prompts(lm):
    rules, ids = published_rules(heavy=0.1, window=0.1), in_ids(2)
    layers, found = layers_of(lm, ids), set()
    prompts = [prompt_of(layer, ids) for layer in layers]
    recoveries = np.concatenate([p.recovery(strategies(rules), 100).T.ravel() for p in prompts])
    for threshold in np.quantile(recoveries, [0.05, 0.4, 0.6, 0.8]) + 1e-4:
        policy = kvjax.methods.fastgen(threshold=float(threshold), new=10, rules=rules, **KINDS)
        cache = kvjax.compress(kvjax.prefill(lm, ids, needs=policy), policy)
        for i, prompt in enumerate(prompts):
            chosen = prompt.choose(strategies(rules), threshold, 100)
            found |= set(chosen.tolist())
            for got, want in zip(cache.kept(i)[0], prompt.kept(strategies(rules), chosen, 100), strict=True):
                assert_array_equal(got, want)
    assert found == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(
    "rule",
    [
        Rule(), Rule(punctuation=True), Rule(punctuation=True, heavy=0.1), Rule(punctuation=True, heavy=0.1, window=0.1),
        Rule(window=0.2), Rule(heavy=0.15), Rule(full=True),
    ],
    ids=["special", "punctuation", "heavy", "heavy and window", "window", "heavy alone", "full"],
)  # fmt: skip
def test_64_tokens(lm, rule):
    ids, tokens = in_ids(2), ids_of(64, 11)
    policy = kvjax.methods.fastgen(rules=(rule,), new=64, **KINDS)
    layers = layers_of(lm, ids)
    heads = [[decoding(prompt_of(x, ids), h, strategies([rule])[0], 64) for h in range(2)] for x in layers]
    simulated = [Layer(x, of_layer, [*ids, *tokens]) for x, of_layer in zip(layers, heads, strict=True)]
    cache = kvjax.compress(kvjax.prefill(lm, ids, needs=policy), policy)
    fed = kvjax.extend(lm, cache, tokens, policy, block=1, return_logits=True)
    assert_allclose(fed.logits[0], simulate(lm, simulated, tokens, 90), atol=2e-4)
    for i, of_layer in enumerate(heads):
        for got, head in zip(fed.cache.kept(i)[0], of_layer, strict=True):
            assert_array_equal(got, np.sort(head.held))


def test_chunks_and_rows_change_nothing(lm):
    prompts = [in_ids(2), ids_of(150, 3), ids_of(20, 4)]
    policy = kvjax.methods.fastgen(threshold=0.5, new=10, rules=published_rules(heavy=0.1, window=0.1), **KINDS)
    together = kvjax.compress(kvjax.prefill(lm, prompts, needs=policy, chunk=64), policy)
    for r, ids in enumerate(prompts):
        alone = kvjax.compress(kvjax.prefill(lm, ids, needs=policy), policy)
        for layer in range(3):
            for a, b in zip(together.kept(layer)[r], alone.kept(layer)[0], strict=True):
                assert_array_equal(a, b)


@pytest.mark.parametrize("wrong, says", [({"sinks": 0}, "at least 1"), ({"rules": ()}, "at least one")])
def test_wrong_arguments(wrong, says):
    with pytest.raises(ValueError, match=says):
        kvjax.methods.fastgen(**wrong)
