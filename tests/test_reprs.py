"""What objects say of themselves: one line of sizes, also while they are traced; nothing is compared or looked up by it."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import pytest

import kvjax
from kvjax.score import WindowAttention
from tests.conftest import ids_of, policy_of
from tests.decode_loop import unchecked


@pytest.fixture(scope="module")
def cache(pre):
    return kvjax.compress(pre, policy_of("snapkv"))


def test_sizes_in_one_line(lm, pre, cache):
    assert repr(lm) == "LanguageModel('random-0', 3 layers of 4 query and 2 KV heads, float32 0.4 MB, no tokenizer)"
    assert repr(cache) == f"KVCache(3 layers x 1 row x 2 heads, 240 slots, {cache.nbytes / 1e3:.1f} kB, position 90)"
    found = rf"Prefilled\(1 prompt, 90 tokens, 3 layers x 2 heads, {pre.nbytes / 1e6:.1f} MB, {len(pre.needs)} needs\)"
    assert re.fullmatch(found, repr(pre))
    assert re.fullmatch(r"PrefilledRow\(90 tokens, 3 layers, \d+\.\d MB\)", repr(pre.rows[0]))


def test_many_prompts_and_bytes_on_the_host(lm):
    policy = kvjax.methods.knorm(budget=8).replace(encode=kvjax.encode.Stored(placement=kvjax.encode.OnHost()))
    pre = kvjax.prefill(lm, [ids_of(9), ids_of(20)], needs=policy)
    cache = kvjax.compress(pre, policy)
    assert repr(pre).startswith("Prefilled(2 prompts, 9 to 20 tokens, ")
    assert re.search(r"3 layers x 2 rows x 2 heads, 96 slots, .* kB, \d+\.\d kB on the host, position 9 to 20\)", repr(cache))


def test_a_policy_says_what_differs_from_the_default():
    assert repr(kvjax.Policy()) == "Policy()"
    assert repr(kvjax.methods.snapkv(budget=0.5)) == "Policy(score=WindowAttention(), select=TopK(recent=32), budget=0.5)"
    given = kvjax.Policy(score=WindowAttention(window=16), when=kvjax.Every(4), budget=9)
    assert repr(given) == "Policy(score=WindowAttention(window=16), when=Every(k=4), budget=9)"
    assert repr(kvjax.Policy(budget=jnp.int32(7))) == "Policy(budget=7)"


@pytest.mark.parametrize("name", kvjax.methods.names())
def test_every_policy_is_one_line_and_its_name_in_rows_is_whole(name):
    policy = policy_of(name)
    assert "\n" not in repr(policy) and len(repr(policy)) <= len(" ".join(policy.in_full().split()))
    assert policy.in_full().startswith("Policy(score=") and policy.in_full().endswith("attention=" + repr(policy.attention) + ")")


@pytest.mark.parametrize("name", ["snapkv", "kivi", "d2o", "compresskv"])
def test_its_name_in_rows_is_that_of_a_dataclass(name):
    """Rows that were measured before there was a short one are found again."""
    policy = policy_of(name)
    values = {field.name: getattr(policy, field.name) for field in dataclasses.fields(policy)}
    assert policy.in_full() == repr(dataclasses.make_dataclass("Policy", values)(**values))


def test_traced_abstract_and_given_away(lm, pre, cache):
    said = []

    def look(pre, cache, policy, params):
        said.extend(map(repr, (pre, pre.rows[0], cache, policy, lm.replace(params=params))))
        return cache.logits.sum()

    policy = policy_of("h2o").replace(budget=jnp.int32(9))
    jax.eval_shape(look, pre, cache, policy, lm.params)
    jax.jit(jax.grad(lambda params: look(pre, cache, policy, params)))(lm.params)
    jax.vmap(lambda x: look(pre, cache.replace(position=x), policy.replace(budget=x[0]), lm.params))(jnp.ones((3, 1), jnp.int32))
    gone = jax.tree.map(jnp.copy, cache)
    for leaf in jax.tree.leaves(gone):
        leaf.delete()
    with unchecked():
        said += [repr(jax.tree.map(lambda x: object(), x)) for x in (pre, cache, lm)]
    said += [repr(gone)]
    assert all("\n" not in one and "0x" not in one and len(one) < 400 for one in said)
    assert "KVCache(3 layers x 1 row x 2 heads" in repr(gone) and "position" not in repr(gone)
    assert "budget=int32[]" in said[3]


def test_equality_and_trees_do_not_look_at_it(cache):
    assert policy_of("snapkv") == policy_of("snapkv") != policy_of("snapkv", 41)
    assert hash(policy_of("snapkv")) == hash(policy_of("snapkv"))
    assert jax.tree.structure(cache) == jax.tree.structure(jax.tree.map(lambda x: x + 0, cache))
