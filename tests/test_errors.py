"""Bad input is refused before anything is traced, with what was expected, what came and what to do."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import kvjax
import models
from kvjax.checks import check_stop
from kvjax.score import AccumulatedAttention, Recurrence, SeldomLow, SteadyMean
from kvjax.stage import Allocator, Scorer
from tests.conftest import compilations, ids_of, policy_of
from tests.decode_loop import unchecked


@pytest.fixture(scope="module")
def short(lm):
    """The toy model with a context of 64."""
    return lm.replace(decoder=replace(lm.decoder, config=replace(lm.decoder.config, max_positions=64)))


@pytest.mark.parametrize("budget", [0, -3, 0.0, -0.1, 1.5, float("nan"), float("inf"), np.int64(0), np.float32(2.0)])
def test_budgets_out_of_range(budget):
    with pytest.raises(ValueError, match="budget"):
        kvjax.Policy(budget=budget)


@pytest.mark.parametrize("budget", [None, "half", True, np.bool_(True), b"32", [32], np.array([32]), jnp.array([0.5, 0.5])])
def test_budgets_of_the_wrong_type(budget):
    with pytest.raises(TypeError, match="budget must be an int"):
        kvjax.Policy(budget=budget)


def test_unknown_method():
    with pytest.raises(AttributeError, match="nosuchmethod"):
        kvjax.methods.nosuchmethod  # noqa: B018
    assert "snapkv" in kvjax.methods.names()


@pytest.mark.parametrize(
    ("slot", "given"),
    [("score", "snapkv"), ("allocate", kvjax.select.TopK()), ("merge", None), ("when", 3), ("select", kvjax.select.TopK)],
)
def test_a_stage_in_the_wrong_slot(slot, given):
    with unchecked(), pytest.raises(TypeError, match=f"Policy.{slot} must be a "):
        policy_of("snapkv").replace(**{slot: given})


def test_schedules_are_named_where_they_are():
    with unchecked(), pytest.raises(TypeError, match="such as kvjax.AfterPrefill.., kvjax.Every.1. or kvjax.WhenFull..; got 3"):
        kvjax.Policy(when=3)


def test_unknown_stage_slot():
    with pytest.raises(TypeError, match="nosuchstage"):
        policy_of("snapkv").replace(nosuchstage=1)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [([], "empty"), ([[1, 2], []], "prompt 1 is empty"), ([[0] * 1025], "context of 1024"), ([1, 128], "vocabulary of 128")],
)
def test_prompts(lm, prompt, message):
    with compilations() as seen, pytest.raises(ValueError, match=message):
        kvjax.prefill(lm, prompt)
    assert seen == []


def test_text_where_ids_are_expected(lm):
    with pytest.raises(TypeError, match="lm.encode"):
        kvjax.prefill(lm, "hello")


MESSAGE = {"role": "user", "content": "hello"}


@pytest.mark.parametrize(
    "prompts", [[[1.9, 2.2]], [1.9, 2.2], [True, False], 5, [[1, 2], 3], [["a", "b"]], np.int64(3), MESSAGE, {"input_ids": [1, 2]}]
)
def test_what_is_no_prompt_to_generate_from(lm, prompts):
    with compilations() as seen, pytest.raises(TypeError, match="token ids"):
        kvjax.generate(lm, prompts, policy_of("full"))
    assert seen == []


def test_a_dictionary_is_no_prompt(lm):
    """Its keys are texts, and are not what was meant."""
    with pytest.raises(TypeError, match=r"a dictionary of \['role', 'content'\] is no prompt: a chat is a list of"):
        kvjax.generate(lm, MESSAGE, policy_of("full"))
    with pytest.raises(TypeError, match="are its input_ids"):
        kvjax.prefill(lm, {"input_ids": [1, 2]})


def test_a_prompt_that_leaves_no_room(lm):
    """A context of 1024: before anything is computed, and with advice that can be followed."""
    with compilations() as seen, pytest.raises(ValueError, match="1025 tokens .* 1024: no new token fits: shorten the prompt"):
        kvjax.generate(lm, ids_of(1024), policy_of("snapkv"), max_new_tokens=1)
    with pytest.raises(ValueError, match="1025 tokens .* 1024: ask for fewer new tokens"):
        kvjax.generate(lm, ids_of(1020), policy_of("snapkv"), max_new_tokens=5)
    assert seen == []


@pytest.mark.parametrize("stop", [5, "ab", [1.5], [[1]], np.int32(5), np.array(5)])
def test_stops_that_are_none(lm, pre, stop):
    with pytest.raises(TypeError, match="token ids"):
        kvjax.decode(lm, kvjax.compress(pre, policy_of("snapkv")), policy_of("snapkv"), max_new_tokens=1, stop=stop)


def test_stops_may_be_any_collection_of_ids():
    for stop in ((3, 4), [np.int32(3), 4], np.array([3, 4]), jnp.array([3, 4]), {3, 4}, range(3, 5)):
        assert check_stop(stop) == [3, 4]
    assert check_stop(()) == []


def test_a_policy_whose_evidence_was_not_recorded(lm, prompt):
    pre = kvjax.prefill(lm, prompt, needs=policy_of("snapkv"))
    with compilations() as seen, pytest.raises(ValueError, match="ColumnSums.*did not record.*needs=policy"):
        kvjax.compress(pre, policy_of("h2o"))
    with pytest.raises(ValueError, match="WindowQueries"):
        kvjax.compress(pre, kvjax.methods.snapkv(window=200))
    assert seen == []


def test_what_is_recorded_is_said_in_many_ways(lm, prompt):
    policy = policy_of("snapkv")
    ways = (policy, policy.score, [policy], [policy.score], list(policy.needs), set(policy.needs), iter([policy]), *policy.needs)
    assert {kvjax.prefill(lm, prompt, needs=way).needs for way in ways} == {tuple(policy.needs)}
    for wrong in ("snapkv", ["snapkv"], None, kvjax.Policy, 32):
        with pytest.raises(TypeError, match="expected a policy, a stage such as policy.score, .* got"):
            kvjax.prefill(lm, prompt, needs=wrong)


def test_nan_weights(lm, prompt):
    broken = lm.replace(params={**lm.params, "norm": {"weight": lm.params["norm"]["weight"].at[3].set(jnp.nan)}})
    with pytest.raises(FloatingPointError, match="NaN or infinite"):
        kvjax.prefill(broken, prompt)


def test_context_overrun_while_decoding(lm):
    policy = policy_of("snapkv")
    cache = kvjax.compress(kvjax.prefill(lm, ids_of(1000)), policy)
    with pytest.raises(ValueError, match="context of 1024"):
        kvjax.decode(lm, cache, policy, max_new_tokens=64)
    with pytest.raises(ValueError, match="context of 1024"):
        kvjax.extend(lm, cache, ids_of(30), policy)


def test_a_cache_of_another_policy(lm, pre):
    cache = kvjax.compress(pre, policy_of("snapkv"))
    with pytest.raises(ValueError, match="compress with it"):
        kvjax.decode(lm, cache, policy_of("h2o"))


@pytest.mark.parametrize("new", [0, -1, 2.5, True, "many"])
def test_new_tokens(lm, pre, new):
    with pytest.raises((ValueError, TypeError), match="max_new_tokens"):
        kvjax.decode(lm, kvjax.compress(pre, policy_of("snapkv")), policy_of("snapkv"), max_new_tokens=new)


def test_things_that_are_not_policies_or_caches(lm, pre):
    with pytest.raises(TypeError, match="policy"):
        kvjax.compress(pre, "snapkv")
    with pytest.raises(TypeError, match="cache"):
        kvjax.decode(lm, pre, policy_of("snapkv"))


MODEL, KEY, SAMPLER = "expected a language model, such as", "key must be a JAX key, such as", "sampler must be kvjax.Greedy"
SNAP = kvjax.methods.snapkv(budget=16, window=8)
ARGUMENTS = {
    "a name for a model": (lambda lm, pre, cache: kvjax.prefill("smollm2-135m", [1, 2]), MODEL + ".* got 'smollm2-135m'"),
    "a name to generate with": (lambda lm, pre, cache: kvjax.generate("smollm2-135m", [1, 2], SNAP), MODEL),
    "a name for an attention": (lambda lm, pre, cache: kvjax.prefill(lm, [1], attention="causal"), "or None; got 'causal'"),
    "text for a chunk": (lambda lm, pre, cache: kvjax.prefill(lm, [1], chunk="a"), "chunk must be a multiple of 64 .* got 'a'"),
    "half a chunk": (lambda lm, pre, cache: kvjax.prefill(lm, [1], chunk=64.5), "chunk must be a multiple of 64 tokens"),
    "arguments turned around": (lambda lm, pre, cache: kvjax.decode(cache, lm, SNAP), MODEL + r".* got KVCache\("),
    "turned around in a stream": (lambda lm, pre, cache: next(kvjax.stream(cache, lm, SNAP)), MODEL),
    "turned around in extend": (lambda lm, pre, cache: kvjax.extend(cache, lm, [1], SNAP), MODEL),
    "turned around in a second pass": (lambda lm, pre, cache: kvjax.second_pass(pre, lm, SNAP), MODEL),
    "extending a prefill": (lambda lm, pre, cache: kvjax.extend(lm, pre, [1], SNAP), "expected a KVCache from"),
    "extending by a name": (lambda lm, pre, cache: kvjax.extend(lm, cache, [1], "snapkv"), "expected the policy .* got 'snapkv'"),
    "generating by a name": (lambda lm, pre, cache: kvjax.generate(lm, [1], "snapkv"), "expected the policy .* got 'snapkv'"),
    "a temperature for a sampler": (lambda lm, pre, cache: kvjax.decode(lm, cache, SNAP, sampler=0.7), SAMPLER),
    "a class for a sampler": (lambda lm, pre, cache: kvjax.decode(lm, cache, SNAP, sampler=kvjax.Sample), SAMPLER),
    "a temperature to generate": (lambda lm, pre, cache: kvjax.generate(lm, [1], SNAP, sampler=0.7), SAMPLER),
    "a seed for a key": (lambda lm, pre, cache: kvjax.decode(lm, cache, SNAP, sampler=kvjax.Sample(), key=0), KEY),
    "a seed beside no sampler": (lambda lm, pre, cache: next(kvjax.stream(lm, cache, SNAP, key=0)), KEY),
    "a configuration as it is read": (lambda lm, pre, cache: models.random({"model_type": "llama"}), "expected a DecoderConfig"),
}  # fmt: skip


@pytest.mark.parametrize("name", ARGUMENTS)
def test_wrong_arguments_of_the_main_calls(lm, pre, name):
    """Before anything is computed."""
    call, said = ARGUMENTS[name]
    cache = kvjax.compress(pre, SNAP)
    with unchecked(), compilations() as seen, pytest.raises(TypeError, match=said) as error:
        call(lm, pre, cache)
    assert seen == [] and len(str(error.value)) < 300


def test_a_cache_of_another_model(lm, pre):
    from models import llama, random
    from tests.conftest import toy_config

    other = random(llama.config(toy_config(num_hidden_layers=2)))
    with pytest.raises(ValueError, match="another model"):
        kvjax.decode(other, kvjax.compress(pre, policy_of("snapkv")), policy_of("snapkv"))


def test_chunks(lm, prompt):
    for chunk in (0, 32, 100):
        with pytest.raises(ValueError, match="multiple of 64"):
            kvjax.prefill(lm, prompt, chunk=chunk)


def test_extend_rows_must_match(lm, pre):
    with pytest.raises(ValueError, match="1 rows; got tokens for 2"):
        kvjax.extend(lm, kvjax.compress(pre, policy_of("full")), [[1], [2]], policy_of("full"))


def test_policies_survive_pytree_round_trips():
    policy = policy_of("adakv")
    leaves, shape = jax.tree.flatten(policy)
    assert jax.tree.unflatten(shape, leaves) == policy
    assert jax.tree.map(lambda x: x, policy) == policy


@pytest.mark.parametrize("budget", [np.array(32), jnp.int32(32), np.int64(32)])
def test_scalars_of_numpy_and_jax_are_the_numbers_they_are(pre, budget):
    with unchecked():
        assert kvjax.compress(pre, policy_of("knorm", budget)).lengths.sum() == 32 * 3 * 2


@pytest.mark.parametrize("share", [0.5, np.float64(0.5), np.float32(0.5), jnp.float32(0.5)])
def test_a_share_of_numpy_or_jax_is_a_share(share):
    methods = kvjax.methods
    with unchecked():
        assert float(methods.chunkkv(budget=share).select.share) == 0.5
        assert float(methods.finch(budget=share, chunk=32).select.share) == 0.5
        assert float(methods.lagkv(budget=share, recursive=True).select.share) == 0.5
        assert not kvjax.Policy(budget=type(share)(1.0) if isinstance(share, float) else share * 2).numbered


@pytest.mark.parametrize("budget", [100, np.array(100), jnp.int32(100), np.int64(100)])
def test_a_budget_above_the_prompt_is_room_to_grow(lm, pre, budget):
    with unchecked():
        policy = policy_of("h2o", budget)
        cache = kvjax.compress(pre, policy)
        assert (np.asarray(cache.budget) == 100).all()
        assert (kvjax.decode(lm, cache, policy, max_new_tokens=5, stop=()).cache.lengths == 95).all()


@pytest.mark.parametrize("k", [0, -3, 2.5, True, float("inf"), np.float32(1.5), jnp.int32(0)])
def test_intervals_are_whole_tokens(k):
    with pytest.raises(ValueError, match="Every.k must be a whole number of at least 1; got"):
        kvjax.Every(k)
    assert [kvjax.Every(x).k for x in (3, 3.0, np.int64(3), jnp.int32(3))] == 4 * [3]


@pytest.mark.parametrize("slack", [-3, 2.5, True, float("nan")])
def test_slack_and_growth_are_whole_slots(slack):
    with pytest.raises(ValueError, match="WhenFull.slack must be a whole number of at least 0; got"):
        kvjax.WhenFull(slack)
    with pytest.raises(ValueError, match="Every.growth must be a whole number of at least 0; got"):
        kvjax.Every(1, reallocate=True, growth=-4)


@pytest.mark.parametrize("headroom", [-8, float("nan"), 1.5, True, "8"])
def test_a_headroom_that_is_none(pre, headroom):
    with unchecked(), pytest.raises(ValueError, match="headroom is a number of slots"):
        kvjax.compress(pre, policy_of("knorm"), headroom=headroom)


@pytest.mark.parametrize(
    ("ids", "error", "why"), [([128], ValueError, "id 128"), ([-1], ValueError, "id -1"), ([1.5], TypeError, "integers")]
)
def test_extend_refuses_what_is_no_token(lm, pre, ids, error, why):
    with pytest.raises(error, match=why):
        kvjax.extend(lm, kvjax.compress(pre, policy_of("full")), ids, policy_of("full"))


def test_the_context_is_counted_row_by_row(short):
    """A row of 60 tokens takes 2 more and one of 5 takes 30, in a context of 64; the other way round they do not fit."""
    policy = policy_of("full")
    cache = kvjax.compress(kvjax.prefill(short, [ids_of(60), ids_of(5)]), policy)
    read = kvjax.extend(short, cache, [ids_of(2, 3), ids_of(30, 4)], policy, return_logits=True)
    assert read.cache.position.tolist() == [62, 35]
    for row, (prompt, fed) in enumerate([(ids_of(60), ids_of(2, 3)), (ids_of(5), ids_of(30, 4))]):
        alone = kvjax.compress(kvjax.prefill(short, prompt), policy)
        want = kvjax.extend(short, alone, fed, policy, return_logits=True).logits[0]
        np.testing.assert_allclose(read.logits[row, : len(fed)], want, atol=2e-5)
    with pytest.raises(ValueError, match="90 tokens would exceed the model's context of 64"):
        kvjax.extend(short, cache, [ids_of(30, 4), ids_of(2, 3)], policy)


@pytest.mark.parametrize(
    "given", [{"temperature": np.float32(0)}, {"temperature": jnp.inf}, {"top_p": np.float64(1.5)}, {"top_k": jnp.int32(-1)}]
)
def test_samplers_out_of_range(given):
    with pytest.raises(ValueError, match="must be"):
        kvjax.Sample(**given)


@pytest.mark.parametrize("block", [0, -1, 2.5, True, "8"])
def test_blocks(lm, pre, block):
    policy = policy_of("full")
    with unchecked(), pytest.raises(ValueError, match="block is the most tokens run at once, an integer of at least 1; got"):
        kvjax.extend(lm, kvjax.compress(pre, policy), [1, 2, 3], policy, block=block)


def test_rows_without_a_token_have_no_logits(lm, pre):
    policy = policy_of("full")
    read = kvjax.extend(lm, kvjax.compress(pre, policy), [[]], policy, return_logits=True)
    assert read.logits.shape == (1, 0, 128) and read.logits.dtype == jnp.float32


@pytest.mark.parametrize("name, outside", [("omnikv", 180), ("neo", 300), ("shadowkv", 384)])
def test_tokens_outside_the_pool_are_not_left_behind(lm, tmp_path, name, outside):
    """Of 540 tokens of three layers and two heads."""
    mine, full = policy_of(name), policy_of("full")
    cache = kvjax.compress(kvjax.prefill(lm, ids_of(90), needs=mine), mine)
    assert (cache.held - cache.lengths).sum() == outside
    masked = full.replace(retrieve=kvjax.retrieve.MaskHeads(mask=np.zeros((3, 4), bool)))
    calls = (
        lambda policy: kvjax.decode(lm, cache, policy, max_new_tokens=1),
        lambda policy: kvjax.extend(lm, cache, [1, 2], policy),
        lambda policy: next(kvjax.stream(lm, cache, policy)),
        lambda policy: kvjax.save_cache(cache, tmp_path / "cache", lm, policy),
    )
    for call in calls:
        for other in (full, masked, policy_of("quest")):
            with pytest.raises(ValueError, match=f"holds {outside} tokens outside its pool .* which .* does not read: decode with"):
                call(other)
        call(mine)


def test_a_cache_all_of_which_is_in_the_pool_is_read_by_any_retriever(lm, pre):
    quest, full = policy_of("quest"), policy_of("full")
    got = kvjax.decode(lm, kvjax.compress(pre, quest), full, max_new_tokens=4, stop=())
    np.testing.assert_array_equal(got.tokens, kvjax.decode(lm, kvjax.compress(pre, full), full, max_new_tokens=4, stop=()).tokens)
    with pytest.raises(ValueError, match="does not count what queries read: compress it with this policy"):
        kvjax.decode(lm, kvjax.compress(pre, full), full.replace(retrieve=kvjax.retrieve.TopP()), max_new_tokens=1)


@pytest.mark.parametrize(
    "merge, why",
    [
        (kvjax.merge.WeightedNearest(), "carries what another merger keeps .* WeightedNearest goes on with its own"),
        (kvjax.merge.IntoDense(), "carries what another merger keeps .* IntoDense goes on with its own"),
        (kvjax.merge.RunningMean(), "RunningMean fits slots to evidence of the prompt"),
    ],
)
def test_a_cache_of_another_merger(lm, pre, merge, why):
    policy = policy_of("h2o")
    cache = kvjax.compress(pre, policy)
    with pytest.raises(ValueError, match=why):
        kvjax.decode(lm, cache, policy.replace(merge=merge), max_new_tokens=1)
    kvjax.decode(lm, cache, policy.replace(merge=kvjax.merge.NearestKey()), max_new_tokens=1)  # which keeps nothing


def test_a_memory_that_nobody_reads(lm):
    less, full = policy_of("less"), policy_of("full")
    pre = kvjax.prefill(lm, ids_of(90), needs=less)
    cache = kvjax.compress(pre, less)
    with pytest.raises(ValueError, match="the cache keeps H, a of tokens that left, the policy reads none of it: compress with it"):
        kvjax.decode(lm, cache, full, max_new_tokens=1)
    with pytest.raises(ValueError, match="the cache keeps nothing of tokens that left, the policy reads H, a: compress with it"):
        kvjax.decode(lm, kvjax.compress(pre, full), less.replace(when=kvjax.AfterPrefill()), max_new_tokens=1)
    kept = less.replace(retrieve=kvjax.retrieve.FullAttention())  # an ablation: absorbed, and never read
    kvjax.decode(lm, kvjax.compress(pre, kept), kept, max_new_tokens=1)


def test_a_cache_of_another_scorer(lm, pre):
    with pytest.raises(ValueError, match="carries what another scorer reads"):
        kvjax.decode(lm, kvjax.compress(pre, policy_of("h2o")), policy_of("tova"))


@struct.dataclass
class OtherHits:
    """As many numbers as `Recurrence` keeps, under other names."""

    one: object
    two: object
    three: object


@struct.dataclass
class LikeRecurrence(Scorer):
    """A scorer whose state has the shapes of `Recurrence`'s."""

    def init(self, shape):
        return OtherHits(*(jnp.zeros(shape, jnp.int32) for _ in range(3)))


@pytest.mark.parametrize(
    "one, other",
    [
        (Recurrence(), LikeRecurrence()),  # other names
        (Recurrence(), SteadyMean()),  # floats for integers
        (AccumulatedAttention(), SeldomLow()),  # 13 words for a number
    ],
)
def test_a_state_of_another_kind_of_the_same_structure(lm, one, other):
    policy = kvjax.Policy(score=one, when=kvjax.Every(1), budget=16)
    cache = kvjax.compress(kvjax.prefill(lm, ids_of(40), needs=policy), policy)
    assert jax.tree.structure(one.init((1, 1, 1))) == jax.tree.structure(other.init((1, 1, 1)))
    with pytest.raises(ValueError, match=f"carries what another scorer reads .* {type(other).__name__} goes on with its state"):
        kvjax.decode(lm, cache, policy.replace(score=other), max_new_tokens=1)


@struct.dataclass
class OneEach(Allocator):
    def __call__(self, ranking, mean_budget):
        return jnp.ones(ranking.scores.shape[:3], jnp.int32)


@struct.dataclass
class ByLayer(Allocator):
    def __call__(self, ranking, mean_budget):
        return jnp.ones(3, jnp.int32)


@struct.dataclass
class NoNumbers(Scorer):
    def score(self, view, evidence):
        return jnp.full(view.pos.shape, jnp.nan)


@struct.dataclass
class ByHead(Scorer):
    def score(self, view, evidence):
        return jnp.zeros((1, 2), jnp.float32)


@struct.dataclass
class Whole(Scorer):
    def score(self, view, evidence):
        return view.pos


class Undecorated(Scorer):
    pass


@pytest.mark.parametrize(
    ("slot", "stage", "error", "why"),
    [
        ("allocate", OneEach, ValueError, "OneEach gave 6 slots in all where 40 a head, 240, were asked for"),
        ("allocate", ByLayer, ValueError, r"ByLayer must give the slots of every head, \[3, 1, 2\]; got \[3\]"),
        ("score", NoNumbers, ValueError, "NoNumbers scored slots as NaN"),
        ("score", ByHead, ValueError, r"ByHead.score must give a float32 for every slot, \[1, 2, 96\]; got float32 \[1, 2\]"),
        ("score", Whole, ValueError, "Whole.score must give a float32 for every slot.*got int32"),
        ("score", Undecorated, TypeError, "put @flax.struct.dataclass above the class"),
    ],
)
def test_stages_of_ones_own_that_break_their_promise(pre, slot, stage, error, why):
    with unchecked(), pytest.raises(error, match=why):
        kvjax.compress(pre, policy_of("knorm").replace(**{slot: stage()}))


@pytest.mark.parametrize("transform", [jax.jit, jax.grad])
def test_compress_under_a_transformation_leads_to_the_core(pre, transform):
    def of(eps):
        scorer = kvjax.score.ExpectedAttention(eps=eps)
        return kvjax.compress(pre, kvjax.Policy(score=scorer, budget=16)).logits.sum()

    with unchecked(), pytest.raises(TypeError, match="under none of jax.jit, vmap and grad: use kvjax.core.compress"):
        transform(of)(0.02)


def test_a_cache_given_to_compress(pre):
    with unchecked(), pytest.raises(TypeError, match="expected prompts from kvjax.prefill"):
        kvjax.compress(kvjax.compress(pre, policy_of("full")), policy_of("full"))
