"""A cache remembers which weights made it, and decodes under no others of equal shape without being told to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
import models
from kvjax.weights_mark import UNKNOWN, mark_of
from models import llama
from tests.conftest import compilations, ids_of, policy_of, toy_config

STORED_IN_PARTS = "mikv"


@pytest.fixture(scope="module")
def other():
    """A model of the toy's shape with other weights."""
    return models.random(llama.config(toy_config()), seed=5)


def changed(params, at: int):
    """The same weights, but for the first number of one parameter."""
    leaves, form = jax.tree.flatten(params)
    first = (0,) * leaves[at].ndim
    leaves[at] = leaves[at].at[first].add(1)
    return jax.tree.unflatten(form, leaves)


def test_every_parameter_is_read(lm):
    marks = {int(mark_of(changed(lm.params, at))) for at in range(len(jax.tree.leaves(lm.params)))}
    assert len(marks | {int(mark_of(lm.params))}) == len(jax.tree.leaves(lm.params)) + 1 and UNKNOWN not in marks
    assert mark_of(jax.tree.map(jnp.copy, lm.params)) == mark_of(lm.params)


def test_it_is_the_formula(lm):
    words = np.concatenate([np.asarray(x).reshape(-1, x.shape[-1])[0, :8] for x in jax.tree.leaves(lm.params)]).view(np.uint32)
    total = sum((2 * i + 1) * int(word) for i, word in enumerate(words)) % 2**32
    assert mark_of(lm.params) == total % (2**32 - 1) + 1


def test_the_same_weights_with_other_layers_sharing_a_cache_are_another_model(lm):
    """Layers 0 and 1 kept, or 0 and 2: as many caches, of the same parameters in the same order. All kept is the model itself."""
    policy = policy_of("snapkv")
    one, other = (models.share_layers(lm, kept=kept) for kept in ((0, 1), (0, 2)))
    assert len({int(mark_of(x.params)) for x in (lm, one, other, one)}) == 3
    assert mark_of(models.share_layers(lm, every=1).params) == mark_of(lm.params)
    cache = kvjax.compress(kvjax.prefill(one, ids_of(20), needs=policy), policy)
    with pytest.raises(ValueError, match="other weights than this model has"):
        kvjax.decode(other, cache, policy, max_new_tokens=2)
    kvjax.decode(one, cache, policy, max_new_tokens=2)


def test_of_weights_that_are_traced_nothing_is_known(lm):
    found = []

    def loss(params):
        found.append(mark_of(params))
        return params["embed"]["weight"].sum()

    jax.grad(loss)(lm.params)
    assert found == [UNKNOWN]


@pytest.mark.parametrize("name", ["snapkv", STORED_IN_PARTS])
def test_another_models_cache_is_refused(lm, pre, other, name, tmp_path):
    policy = policy_of(name)
    cache = kvjax.compress(pre, policy)
    with compilations() as seen, pytest.raises(ValueError, match="other weights than this model has"):
        kvjax.decode(other, cache, policy, max_new_tokens=2)
    assert not [program for program in seen if "loop" in program]
    with pytest.raises(ValueError, match="other weights"):
        kvjax.extend(other, cache, ids_of(3), policy)
    with pytest.raises(ValueError, match="other weights"):
        kvjax.save_cache(cache, tmp_path / "cache", other, policy)
    told = cache.replace(made_by=jnp.zeros_like(cache.made_by))
    assert kvjax.decode(other, told, policy, max_new_tokens=2, stop=()).tokens.shape == (1, 2)


def test_another_models_prompt_is_not_read_again_nor_saved(lm, other, tmp_path):
    """A second pass would record what other weights look at, and a file would carry their digest."""
    pre = kvjax.prefill(lm, ids_of(20), needs=set())
    calls = (
        lambda: kvjax.second_pass(other, pre, policy_of("kvzip")),
        lambda: kvjax.probe(other, pre, ids_of(8), {kvjax.evidence.ColumnSums()}),
        lambda: kvjax.save_prefilled(pre, tmp_path / "prompt", other),
    )
    for call in calls:
        with compilations() as seen, pytest.raises(ValueError, match="other weights than .* has: pass the model that"):
            call()
        assert not [program for program in seen if "layer" in program]
    assert not (tmp_path / "prompt").exists()


@pytest.mark.parametrize("name", ["snapkv", STORED_IN_PARTS])
def test_it_goes_wherever_the_rows_go(lm, pre, name):
    policy = policy_of(name)
    cache = kvjax.compress(pre, policy)
    cache = kvjax.extend(lm, cache, ids_of(3), policy).cache
    cache = kvjax.decode(lm, cache, policy, max_new_tokens=2, stop=()).cache
    assert kvjax.stack([cache, cache]).made_by.tolist() == [int(mark_of(lm.params))] * 2


def test_a_batch_with_one_row_of_another_model_is_refused(lm, pre, other):
    policy = policy_of("snapkv")
    mine = kvjax.compress(pre, policy)
    theirs = kvjax.compress(kvjax.prefill(other, ids_of(90), needs=policy), policy)
    with pytest.raises(ValueError, match="other weights"):
        kvjax.decode(lm, kvjax.stack([mine, theirs]), policy, max_new_tokens=2)


def test_a_streamed_prefill_is_marked(lm):
    policy = policy_of("snapkv")
    cache = kvjax.prefill(lm, ids_of(90), streaming=policy)
    assert cache.made_by.tolist() == [int(mark_of(lm.params))]
