"""Shapes come from size classes; budgets, lengths and their distribution are data."""

from importlib import import_module

import jax
import numpy as np
import pytest

import kvjax
from kvjax.types import size_class
from tests.conftest import compilations, ids_of, policy_of

extend, loop = import_module("kvjax.decode.extend"), import_module("kvjax.decode.loop")


def decode_programs(seen: list[str]) -> list[str]:
    return [name for name in seen if "_loop" in name]


def test_any_distribution_of_one_size_class_shares_one_program(lm):
    pre = kvjax.prefill(lm, ids_of(400, 1))
    run = lambda p: kvjax.decode(lm, kvjax.compress(pre, p), p, max_new_tokens=4, stop=())  # noqa: E731
    run(policy_of("snapkv", 200))
    with compilations() as seen:
        for name in ("adakv", "pyramidkv", "keydiff", "expected_attention", "knorm"):
            run(policy_of(name, 200))
    assert decode_programs(seen) == []


@pytest.mark.parametrize("name", ["snapkv", "h2o", "streaming_llm", "tova"])
def test_reserve_lets_any_budget_share_one_program(lm, name):
    pre = kvjax.prefill(lm, ids_of(640, 1))

    def run(budget):
        policy = policy_of(name, budget)
        cache = kvjax.compress(pre, policy, pool_budget=0.5)
        return kvjax.decode(lm, cache, policy, max_new_tokens=4, stop=(), pool_budget=0.5)

    run(64)
    with compilations() as seen:
        for budget in (65, 300, 0.1, 0.5):
            run(budget)
    assert seen == []


def test_similar_prompts_share_a_prefill(lm):
    kvjax.prefill(lm, ids_of(130, 1))
    with compilations() as seen:
        kvjax.prefill(lm, ids_of(131, 2))
        kvjax.prefill(lm, [ids_of(140, 2), ids_of(144, 3)])
    assert seen == []


def test_numbers_of_a_sampler_are_data(lm, pre):
    policy = policy_of("snapkv")
    cache = kvjax.compress(pre, policy)

    def run(sampler):
        kvjax.decode(lm, cache, policy, max_new_tokens=2, stop=(), sampler=sampler, key=jax.random.key(0))

    run(kvjax.Sample(temperature=0.7, top_k=5, top_p=0.9))
    with compilations() as seen:
        for temperature, top_k, top_p in [(1, 0, 1), (2, 7, 0.5), (0.1, 1, 1.0)]:
            run(kvjax.Sample(temperature=temperature, top_k=top_k, top_p=top_p))
    assert seen == []


def test_numbers_of_a_stage_are_data(lm, pre):
    base = policy_of("adakv")
    kvjax.compress(pre, base)
    with compilations() as seen:
        for alpha, recent in [(0.5, 4), (0.9, 16)]:
            stages = dict(allocate=kvjax.allocate.Adaptive(alpha=alpha), select=kvjax.select.TopK(recent=recent))
            kvjax.compress(pre, base.replace(**stages))
    assert seen == []


@pytest.mark.parametrize("slots", [1, 63, 64, 65, 1000, 4097, 123_457, 10**7])
def test_size_classes_waste_little_and_are_few(slots):
    got = size_class(slots)
    assert got >= slots and got % 8 == 0 and got <= max(64, slots * (1 + 1 / 32) + 8)
    assert size_class(got) == got
    assert len({size_class(n) for n in range(2**14 + 1, 2**15 + 1)}) == 64


def test_size_classes_by_hand():
    """Up to the next of 16 classes a power of two, and never below 64; from eight million slots on up to the next 2^19."""
    assert [size_class(n, 16) for n in (1, 64, 65, 1025, 4096, 4097)] == [64, 64, 72, 1088, 4096, 4352]
    assert [size_class(2**23 + 1, steps) for steps in (16, 64)] == [2**23 + 2**19, 2**23 + 2**17]
    assert [size_class(2**30 + 1, steps) for steps in (16, 64)] == [2**30 + 2**19] * 2


@pytest.mark.parametrize("name", ["snapkv", "streaming_llm", "d2o", "heterocache", "hcattention", "quest"])
def test_a_step_fed_again_is_the_same_program(lm, prompt, name):
    """The first call takes a cache just made, the next what a step gave back."""
    policy = policy_of(name)
    cache = kvjax.compress(kvjax.prefill(lm, prompt, needs=policy), policy)
    for program in (extend._read, loop._one):
        program.clear_cache()  # a pool of this size class may have been stepped before
    with compilations() as seen:
        kvjax.extend(lm, cache, ids_of(5), policy, block=1)
        list(kvjax.stream(lm, cache, policy, max_new_tokens=4, stop=()))
    assert seen.count("jit(_read)") == 1 and seen.count("jit(_one)") == 1


@pytest.mark.parametrize("rows", [1, 8, 9, 50, 200])
def test_known_tokens_are_padded_to_few_widths_and_by_little_in_all(rows):
    tokens = np.arange(2, 513)
    widths = np.asarray([extend._width(int(t), rows, 512) for t in tokens])
    assert (widths >= tokens).all() and (widths <= 512).all() and extend._width(1, rows, 512) == 1
    assert ((widths - tokens) * rows <= np.maximum(max(extend.PADDING, 8 * rows), tokens * rows // 8)).all()
    assert len(set(widths[255:].tolist())) <= 8
