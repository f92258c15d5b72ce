"""SirLLM against its reference: surprisals of prompts and steps, the worked example, turns of a dialogue."""

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import kvjax
from kvjax.evidence import Surprisal
from kvjax.evidence.surprisal import surprisal
from kvjax.score.surprise import opened
from kvjax.select import BestAndRecent
from kvjax.view import LayerView, Ranking
from tests.conftest import ids_of
from tests.reference import sirllm
from tests.reference.test_examples_sirllm import E


def ranking(e: np.ndarray, sinks: int) -> Ranking:
    pos = jnp.arange(len(e), dtype=jnp.int32)[None, None, None]
    scores = jnp.asarray(e, jnp.float32)[None, None, None]
    return Ranking(scores=scores, protected=pos < sinks, valid=pos >= 0, pos=pos)


def kept(e: np.ndarray, budget: int, *, sinks: int, recent: int) -> list[int]:
    keep = BestAndRecent(sinks=sinks, recent=recent)(ranking(e, sinks), jnp.full((1, 1, 1), budget, jnp.int32))
    return np.flatnonzero(keep[0, 0, 0]).tolist()


def test_e29():
    assert kept(E, 5, sinks=1, recent=2) == [0, 2, 5, 6, 7]
    assert kept(E, 5, sinks=1, recent=1) == [0, 2, 4, 5, 7]
    assert_allclose(0.7 * E[[0, 2, 5, 6, 7]], [0.21, 2.1, 2.8, 0.14, 0.63])


@pytest.mark.parametrize("new", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("e", [E, np.array([9.0, 1, 2, 3, 4, 0, 0, 8]), np.zeros(8)])
def test_selection(e, new):
    want = sirllm.kept(e, new, sinks=1, recent=2, surprising=3)
    assert kept(e, 6 - new, sinks=1, recent=2) == want.tolist()


def test_the_first_token_of_a_turn():
    e, pos = jnp.array([[[0.5, 0.1, 7.0, 2.0, 3.0, 9.0]]]), jnp.array([[[0, 1, 4, 5, 6, 7]]])
    assert opened(e, pos, jnp.array([4]), jnp.array([3]))[0, 0].tolist() == pytest.approx([0.5, 0.1, 3.0, 2.0, 3.0, 9.0])
    assert opened(e, pos, jnp.array([7]), jnp.array([1]))[0, 0].tolist() == pytest.approx([0.5, 0.1, 7.0, 2.0, 3.0, 0.0])


def test_surprisals_of_given_logits():
    logits = jnp.log(jnp.array([[[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]]))
    assert_allclose(surprisal(logits + 7, jnp.array([[1, 2]]))[0], [np.log(4), -np.log(0.8)], rtol=1e-5)


def of_prompt(pre, row=0) -> np.ndarray:
    return np.asarray(pre.rows[row].evidence[0].of(Surprisal()))[0]


@pytest.mark.parametrize("n", [1, 64, 90, 200])
def test_surprisals_of_a_prompt(lm, n):
    ids = ids_of(n, 3)
    pre = kvjax.prefill(lm, ids, needs={Surprisal()}, all_logits=True)
    want = np.array(sirllm.surprisal(np.asarray(pre.rows[0].all_logits)[:n], np.array(ids)))
    want[0] = 0.0
    assert_allclose(of_prompt(pre)[:n], want, atol=2e-5)
    for evidence in pre.rows[0].evidence:
        assert_array_equal(evidence.of(Surprisal()), pre.rows[0].evidence[0].of(Surprisal()))


def test_chunks_and_rows_change_no_bit(lm):
    prompts = [ids_of(n, n) for n in (200, 3, 130)]
    both = {Surprisal(), *kvjax.evidence.STANDARD}
    together, chunked = (kvjax.prefill(lm, prompts, needs=both, chunk=chunk) for chunk in (None, 64))
    for r, ids in enumerate(prompts):
        alone = of_prompt(kvjax.prefill(lm, ids, needs={Surprisal()}))
        assert_array_equal(of_prompt(together, r)[: len(ids)], alone[: len(ids)])
        assert_allclose(of_prompt(chunked, r)[: len(ids)], alone[: len(ids)], atol=2e-5)


def test_it_is_refused_before_the_prompt_is_read(lm, prompt):
    with pytest.raises(ValueError, match="reads the model's output"):
        kvjax.prefill(lm, prompt, streaming=kvjax.methods.sirllm(budget=32))
    policy = kvjax.methods.sirllm(budget=32)
    with pytest.raises(ValueError, match="did not record"):
        kvjax.compress(kvjax.prefill(lm, prompt), policy)
    with pytest.raises(ValueError, match="turn=0"):
        kvjax.methods.sirllm(turn=0)


def conversation(logits: np.ndarray, ids: list[int], prompt: int, turn: int, **sizes) -> sirllm.Conversation:
    """The reference after the prompt and turns of one length, on the logits that each token was followed by."""
    talk = sirllm.Conversation(**sizes)
    starts = [0, *range(prompt, len(ids) + 1, turn)]
    for first, end in zip(starts, starts[1:], strict=False):
        talk.turn(sirllm.surprisal(logits[first:end], np.array(ids[first:end])))
    return talk


@pytest.mark.parametrize("eta", [1.0, 0.5])
@pytest.mark.parametrize("block", [1, 8])
def test_a_dialogue_of_64_tokens(lm, eta, block):
    ids, tokens, turn = ids_of(60, 5), ids_of(64, 11), 8
    policy = kvjax.methods.sirllm(budget=24, sinks=2, recent=6, turn=turn, eta=eta)
    pre = kvjax.prefill(lm, ids, needs=policy, all_logits=True)
    fed = kvjax.extend(lm, kvjax.compress(pre, policy), tokens, policy, block=block, return_logits=True)
    logits = np.concatenate([np.asarray(pre.rows[0].all_logits)[:60], np.asarray(fed.logits)[0]])
    sizes = dict(sinks=2, recent=6, surprising=24, eta=eta)
    talk = conversation(logits, [*ids, *tokens], 60, turn, **sizes)
    talk.turn(np.zeros(turn))  # what the next turn finds
    for layer in range(3):
        for h, held in enumerate(fed.cache.kept(layer)[0]):
            assert_array_equal(held, talk.held[:-turn])
            start = int(fed.cache.start[layer, 0, h])
            order = np.argsort(fed.cache.pos[start : start + len(held)])
            assert_allclose(fed.cache.state.score[start : start + len(held)][order], talk.e[:-turn], atol=1e-4)


def test_turns_that_end_within_one_block():
    """Three tokens after a prompt of two, turns of two, eta 1/2: one turn ends behind the first of them and one is begun."""
    e, stage = jnp.array([[[4.0, 8.0, 1.0, 3.0, 5.0]]]), kvjax.score.Surprise(turn=2, eta=0.5)

    def after(state, since, length):
        pos = jnp.arange(length, dtype=jnp.int32)[None, None]
        view = LayerView.of_prompt(jnp.array([length]), pos.shape).replace(
            state=state, since=jnp.array([since]), prompt=jnp.array([2])
        )
        new = e[:, 0, since:length]
        return stage.observe(view, kvjax.evidence.Evidence(data={Surprisal().key: new}, length=view.length, rope=None))

    one_by_one = after(jnp.array([[[4.0, 8.0, 0.0]]]), 2, 3)
    one_by_one = after(jnp.pad(one_by_one, ((0, 0), (0, 0), (0, 1))), 3, 4)
    one_by_one = after(jnp.pad(one_by_one, ((0, 0), (0, 0), (0, 1))), 4, 5)
    assert one_by_one.tolist() == [[[2.0, 4.0, 1.5, 1.5, 5.0]]]
    assert after(jnp.array([[[4.0, 8.0, 0.0, 0.0, 0.0]]]), 2, 5).tolist() == one_by_one.tolist()
    assert after(jnp.array([[[4.0, 8.0, 1.0, 0.0, 0.0]]]), 3, 5).tolist() == one_by_one.tolist()


def test_blocks_of_any_length_fade_once_a_turn(lm):
    """Nothing goes: what is held after 33 and 20 tokens does not depend on how many were fed at once."""
    policy = kvjax.methods.sirllm(budget=256, turn=8, eta=0.5)
    pre = kvjax.prefill(lm, [ids_of(40, 1), ids_of(23, 2)], needs=policy)
    one, many = (
        kvjax.extend(lm, kvjax.compress(pre, policy), [ids_of(33, 3), ids_of(20, 4)], policy, block=block).cache
        for block in (1, 64)
    )
    for x, y in zip(one.start.ravel(), many.start.ravel(), strict=True):
        assert_allclose(one.state.score[int(x) : int(x) + 43], many.state.score[int(y) : int(y) + 43], atol=1e-5)


def test_positions_are_ranks(lm):
    """A text beyond the model's context goes on, whatever its length."""
    policy = kvjax.methods.sirllm(budget=24, turn=16)
    cache = kvjax.compress(kvjax.prefill(lm, ids_of(1000, 2), needs=policy), policy)
    fed = kvjax.extend(lm, cache, ids_of(64, 3), policy, block=16, return_logits=True)
    assert jnp.isfinite(fed.logits).all() and int(fed.cache.position[0]) == 1064
