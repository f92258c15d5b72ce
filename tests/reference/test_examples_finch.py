"""FINCH: the worked example A19g, chunks, edges."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from .attention import attention_rows
from .finch import finch, kept, of_rows, split_at
from .window_attention import scores_of_rows


def rows_of_example():
    rows = np.zeros((1, 1, 2, 5))
    rows[0, 0, :, :3] = [[0.5, 0.3, 0.2], [0.4, 0.1, 0.3]]
    return rows


def test_a19g():
    u = of_rows(rows_of_example())[0]
    assert_allclose(u, [1.55, 0.65, 0.9])
    assert list(np.argsort(-u)) == [0, 2, 1]


def test_equal_attention_scores_alike_in_every_row():
    """The first row before itself sees S - W keys: uniform attention over them gives 1 each, whatever the row."""
    q, k = np.zeros((1, 1, 3, 4)), np.zeros((1, 9, 4))
    rows = attention_rows(q, k)[0, 0] * np.arange(6, 9)[:, None]
    assert_allclose(rows[:, :6], [[6 / 7] * 6, [7 / 8] * 6, [8 / 9] * 6])
    assert_allclose(finch(q, k), [[np.mean([6 / 7, 7 / 8, 8 / 9])] * 6])


def test_a_window_of_one_orders_as_the_last_query():
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(2, 2, 1, 8)), rng.normal(size=(2, 20, 8))
    plain = scores_of_rows(attention_rows(q, k), window=1, size=1)
    assert_allclose(finch(q, k), 19 * plain)


def test_the_delimiter_leaves():
    assert split_at([5, 6, 99, 7, 8, 9], 99) == ([5, 6, 7, 8, 9], 3)


@pytest.mark.parametrize("share, chunk, expected", [(0.6, None, [0, 3, 4]), (0.8, None, [0, 2, 3, 4]), (0.5, 3, [0, 4])])
def test_kept(share, chunk, expected):
    assert list(kept(np.array([1.55, 0.65, 0.9]), window=2, share=share, chunk=chunk)) == expected


def test_a_question_alone():
    assert list(kept(np.zeros(0), window=3, share=1.0)) == [0, 1, 2]
