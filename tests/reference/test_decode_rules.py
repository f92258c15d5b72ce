"""What must hold of every rule that evicts while decoding."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from . import cake, h2o, keyformer, lazy_eviction, roco, scissorhands
from .decode_head import as_logits, decode_head
from .softmax import softmax

PROMPT, TOKENS = 16, 50
NOISE = np.random.default_rng(9).gumbel(size=(1, TOKENS, TOKENS))

#: name: a rule of at most `budget` slots, and what it is shown
RULES: dict[str, tuple[Callable, Callable]] = {
    "h2o": (lambda budget: h2o.Decoding(budget - 4, 4), softmax),
    "keyformer": (lambda budget: keyformer.Decoding(budget, 4, NOISE), as_logits),
    "scissorhands": (lambda budget: scissorhands.Decoding(budget, window=10, recent=3), softmax),
    "roco": (lambda budget: roco.Decoding(budget), softmax),
    "lazy_eviction": (lambda budget: lazy_eviction.Decoding(budget, 4, alpha=0.1), softmax),
    "cake": (lambda budget: cake.Decoding(budget - 4, 4, np.arange(PROMPT)), softmax),
}


def random_head(seed):
    rng = np.random.default_rng(seed)
    return 2 * rng.normal(size=(3, TOKENS, 8)), rng.normal(size=(TOKENS, 8)), rng.normal(size=(TOKENS, 8))


def run(name, budget, q, k, v):
    make, show = RULES[name]
    return decode_head(make(budget), q, k, v, PROMPT, show=show)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("seed", range(3))
def test_positions_are_distinct_ascending_and_never_come_back(name, seed):
    steps = run(name, 14, *random_head(seed))
    for i, (before, after) in enumerate(zip(steps[:-1], steps[1:], strict=True)):
        assert (np.diff(after.held) > 0).all()
        assert set(after.held.tolist()) <= set(before.held.tolist()) | {PROMPT + i}
    assert len(steps[-1].held) < TOKENS


@pytest.mark.parametrize("name", RULES)
def test_the_output_is_full_attention_under_a_mask(name):
    q, k, v = random_head(3)
    steps = run(name, 14, q, k, v)
    for i, (before, after) in enumerate(zip(steps[:-1], steps[1:], strict=True)):
        t = PROMPT + i
        seen = np.isin(np.arange(TOKENS), np.append(before.held, t))
        z = np.where(seen, q[:, t] @ k.T / np.sqrt(8), -np.inf)
        assert_allclose(after.out, softmax(z) @ v)


@pytest.mark.parametrize("name", RULES)
def test_a_budget_of_everything_holds_everything(name):
    for i, step in enumerate(run(name, TOKENS, *random_head(4))):
        assert_array_equal(step.held, np.arange(PROMPT + i))


@pytest.mark.parametrize("name", RULES)
def test_query_heads_of_a_group_may_be_swapped(name):
    q, k, v = random_head(5)
    for one, other in zip(run(name, 14, q, k, v), run(name, 14, q[::-1], k, v), strict=True):
        assert_array_equal(one.held, other.held)


@pytest.mark.parametrize("name", RULES)
def test_later_tokens_do_not_change_earlier_decisions(name):
    q, k, v = random_head(6)
    changed = [x.copy() for x in (q, k, v)]
    for x in changed:
        x[..., 40:, :] = 7.0
    for one, other in zip(run(name, 14, q, k, v)[:24], run(name, 14, *changed)[:24], strict=True):
        assert_array_equal(one.held, other.held)


@pytest.mark.parametrize("name", RULES)
def test_values_do_not_decide(name):
    q, k, v = random_head(7)
    for one, other in zip(run(name, 14, q, k, v), run(name, 14, q, k, -3 * v), strict=True):
        assert_array_equal(one.held, other.held)
