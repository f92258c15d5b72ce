"""SnapKV with its published settings of LongBench, and what is built on it: the transcription on the toy model."""

import numpy as np
import pytest

import kvjax
from kvjax.score import AvgPool, MaxPool, NoPool, PooledByQueryHead, WindowAttention
from tests.methods.simulation import kept_by, prompt_arrays, same_kept
from tests.reference.highest import highest
from tests.reference.pooling import avg_pool, max_pool, no_pool
from tests.reference.window_attention import scores_by_query_head

W = 8
POOLS = {"max 7": (MaxPool(7), max_pool, 7), "average 5": (AvgPool(5), avg_pool, 5), "none": (NoPool(), no_pool, 1)}


@pytest.fixture(scope="module")
def layers(lm, prompt):
    return prompt_arrays(lm, prompt)


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("budget", [12, 25, 50])
def test_what_a_prompt_keeps(pre, layers, budget, name):
    """Every query head's scores are pooled, then averaged over the group."""
    pool, reference, size = POOLS[name]
    want = []
    for x in layers:
        u = scores_by_query_head(x.rows(W), window=W, pool=reference, size=size)
        want.append([np.append(highest(head, budget - W), np.arange(90 - W, 90)) for head in u])
    same_kept(kept_by(kvjax.compress(pre, kvjax.methods.snapkv(budget=budget, window=W, pool=pool))), want)


def test_averages_are_pooled_once_a_kv_head():
    assert type(kvjax.methods.snapkv().score) is WindowAttention
    assert type(kvjax.methods.pyramidkv(pool=MaxPool(7)).score) is PooledByQueryHead
    assert type(kvjax.methods.criticalkv(pool=MaxPool(7)).score.score_of) is PooledByQueryHead
    assert type(kvjax.methods.chunkkv(pool=MaxPool(7)).score.score_of) is PooledByQueryHead
    assert type(kvjax.methods.adakv(pool=MaxPool(7)).score) is WindowAttention
