"""ZeroMerge: the worked example A19a, the authors' run of 20 steps, what it reduces to, edges."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from .attention import attention_rows
from .golden_methods import load
from .softmax import softmax
from .zeromerge import Head, largest_dot, prompt_scores, runs, smallest_distance, split

SCORE = np.array([0.9, 0.1, 0.3, 0.2, 0.8, 0.05, 0.4, 0.6])


def test_a19a_start():
    v = np.arange(8.0)[:, None]
    head = Head(v + 1, v, SCORE, *split(5))
    assert split(5) == (1, 2, 2)
    assert head.pos.tolist() == [-1, 0, 4, 6, 7]
    assert (head.v[0, 0], head.c[0], head.s[0]) == (2.75, 4, 0.3)
    assert_allclose(np.log(head.c[0]), 1.386294, atol=5e-7)


def test_a19a_runs():
    assert runs(7, 3) == [3, 2, 2]


def test_a19a_merging_one_more():
    """Top 4 (score .8) is the weakest once 0 and the tail's oldest are stronger: 2.75 of 4 tokens and 4 give 3.0 of 5."""
    v = np.arange(8.0)[:, None]
    head = Head(v + 1, v, np.array([0.9, 0.1, 0.3, 0.2, 0.8, 0.05, 2.0, 0.6]), *split(5))
    head.step(np.zeros((1, 1)), np.array([9.0]), np.array([8.0]))
    assert (head.v[0, 0], head.c[0]) == (3.0, 5)
    assert head.pos.tolist() == [-1, 0, 7, 6, 8]


@pytest.mark.parametrize("case, nearest, together", [("c0", largest_dot, max), ("c1", smallest_distance, sum)])
def test_the_authors_run(case, nearest, together):
    data = load("zeromerge")
    n, shrink = int(data["n_prompt"]), float(data[f"{case}_shrink"])
    parts = int(data["cache_dense"]), int(data["cache_budget"] - data["cache_dense"] - data["cache_tail"]), int(data["cache_tail"])
    for h, (q, k, v) in enumerate(zip(*(data[f"{case}_{name}"][0] for name in ("query", "key", "value")), strict=True)):
        score = prompt_scores(attention_rows(q[None, None, :n], k[None, :n])[0], shrink)
        assert_allclose(score, data[f"{case}_prompt_score"][0, h], atol=5e-6)
        head = Head(k[:n], v[:n], score, *parts, shrink=shrink, nearest=nearest, together=together)
        same(head, data, f"{case}_init", h)
        for t, out in enumerate(data[f"{case}_attn_out_per_step"]):
            assert_allclose(head.step(q[n + t][None], k[n + t], v[n + t])[0], out[0, h, 0], atol=5e-6)
        same(head, data, f"{case}_final", h)


def same(head, data, prefix, h):
    for ours, name in ((head.k, "key"), (head.v, "value"), (head.s, "score")):
        assert_allclose(ours, data[f"{prefix}_{name}"][0, h], atol=5e-6)
    assert_array_equal(head.c, data[f"{prefix}_weight"][0, h])


def test_a_prompt_that_fits_has_its_first_slots_dense():
    """Five tokens fill 1 + 2 + 2 slots; with the sixth the weakest of tokens 1 to 3 joins token 0, however strong that is."""
    x = np.arange(5.0)[:, None]
    head = Head(x, x, np.array([9.0, 0.4, 0.3, 0.35, 0.2]), *split(5))
    assert head.c.tolist() == [1] * 5 and head.pos.tolist() == [0, 1, 2, 3, 4]
    head.step(np.zeros((1, 1)), np.array([5.0]), np.array([5.0]))
    assert (head.v[:, 0].tolist(), head.c.tolist()) == ([1.0, 1, 4, 3, 5], [2, 1, 1, 1, 1])
    assert head.pos.tolist() == [-1, 1, 4, 3, 5]


def test_counts_add_up_to_the_tokens_seen():
    rng = np.random.default_rng(0)
    head = Head(*rng.normal(size=(2, 30, 4)), rng.random(30), 3, 8, 5)
    for _ in range(25):
        head.step(rng.normal(size=(2, 4)), *rng.normal(size=(2, 4)))
        assert len(head.k) == 16
        assert head.c.sum() == head.seen
    assert set(range(head.seen - 4, head.seen)) <= set(head.pos)


def test_a_merged_slot_of_equal_tokens_changes_no_output():
    """c equal tokens in one slot with bias ln c attend as the c tokens do."""
    k, v = np.ones((9, 2)), np.tile([1.0, -1.0], (9, 1))
    head = Head(k, v, np.arange(9.0), 1, 2, 2)
    q = np.array([[0.3, 0.4]])
    out = head.step(q, np.array([2.0, 0]), np.array([5.0, 5.0]))
    rows = softmax(np.append(np.full(9, q.sum()), 0.6) / np.sqrt(2))
    assert_allclose(out[0], rows[:9].sum() * v[0] + rows[9] * 5)


def test_below_the_budget_it_is_plain_attention():
    rng = np.random.default_rng(1)
    k, v = rng.normal(size=(2, 8, 4))
    head = Head(k[:1], v[:1], np.ones(1), 1, 3, 2)
    for t in range(1, 7):
        q = rng.normal(size=(1, 4))
        assert_allclose(head.step(q, k[t], v[t])[0], softmax(q[0] @ k[: t + 1].T / 2) @ v[: t + 1])
    assert len(head.k) == 6 and head.c.tolist() == [2, 1, 1, 1, 1, 1]
