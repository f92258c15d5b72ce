"""DapQ: its worked example and the transcription on the toy model's own pseudo tokens."""

import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers.processors import TemplateProcessing

import kvjax
import models
from kvjax.evidence import Evidence
from kvjax.prefill.pseudo_queries import SUFFIX as WORDS
from kvjax.prefill.pseudo_queries import PseudoQueries
from kvjax.prefill.text_inside import ids_inside
from kvjax.score.pseudo import PseudoAttention
from kvjax.select import TopK
from kvjax.view import LayerView, Ranking
from models import llama
from tests.conftest import ids_of, toy_config
from tests.experiments.conftest import byte_tokenizer
from tests.methods.simulation import kept_by, prompt_arrays, same_kept
from tests.reference import dapq

SUFFIX = (5, 6, 7)


def policy_at(budget, **arguments):
    return kvjax.methods.dapq(budget=budget, size=8, front=2, suffix=SUFFIX, **arguments)


def test_e12():
    rows = jnp.asarray([[0.05, 0.4, 0.05, 0.3, 0.1], [0.05, 0.1, 0.05, 0.5, 0.2]])
    score = PseudoAttention()
    view = LayerView.of_prompt(jnp.asarray([5], jnp.int32), (1, 1, 5))
    seen = Evidence(data={score.queries.key: rows.sum(0)[None, None, None]}, length=view.length, rope=None)
    u = score.score(view, seen)
    np.testing.assert_allclose(u[0, 0], [0.1, 0.5, 0.1, 0.8, 0.3], atol=1e-6)
    ranking = Ranking(scores=u[None], protected=view.pos[None] < 0, valid=view.valid[None], pos=view.pos[None])
    assert np.flatnonzero(TopK()(ranking, jnp.asarray([[[2]]], jnp.int32))).tolist() == [1, 3]


@pytest.fixture(scope="module")
def read(lm, prompt):
    """The prompt after its second pass, and the arrays of prompt and pseudo tokens as one text."""
    policy = policy_at(20)
    pre = kvjax.second_pass(lm, kvjax.prefill(lm, prompt, needs=policy), policy)
    pseudo = PseudoQueries(size=8, front=2, suffix=SUFFIX).tokens(prompt, SUFFIX)
    assert pseudo == [*prompt[:2], 5, 6, 7, 5, 6, 7]
    return pre, prompt_arrays(lm, [*prompt, *pseudo])


def test_scores(read):
    pre, layers = read
    scores = kvjax.score_prompt(pre, policy_at(20)).rows[0].scores
    for got, x in zip(scores, layers, strict=True):
        np.testing.assert_allclose(got[0, :, :90], dapq.pseudo_scores(x.rows(8), 90), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("recent", [0, 6])
@pytest.mark.parametrize("budget", [7, 20, 60])
def test_what_a_prompt_keeps(read, budget, recent):
    pre, layers = read
    want = [dapq.kept(x.q[:, :, -8:], x.k, budget, recent=recent) for x in layers]
    same_kept(kept_by(kvjax.compress(pre, policy_at(budget, recent=recent))), want)


def test_decoding_goes_on_from_the_last_true_token(lm, read, prompt):
    """With everything kept, nothing of the pseudo tokens is left."""
    pre, full = read[0], kvjax.methods.full()
    policy = policy_at(1.0)
    got = kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=4, stop=(), return_logits=True)
    want = kvjax.decode(lm, kvjax.compress(kvjax.prefill(lm, prompt), full), full, max_new_tokens=4, stop=(), return_logits=True)
    np.testing.assert_array_equal(got.logits, want.logits)
    assert int(got.cache.position[0]) == 94


def framed(lm, form):
    """The model with a tokenizer that puts <eos> (256) before or behind every text, as `form` says of the text A."""
    tokenizer = byte_tokenizer()
    tokenizer.inner.backend_tokenizer.post_processor = TemplateProcessing(single=form, special_tokens=[("<eos>", 256)])
    return lm.replace(tokenizer=tokenizer)


def test_what_opens_every_text_stands_before_no_suffix():
    """A tokenizer's first token is the prompt's first alone: pseudo queries go on with the suffix's own words."""
    made = models.random(llama.config(toy_config(vocab_size=257, num_hidden_layers=2)), seed=1)
    lm, bare = framed(made, "<eos> $A"), made.replace(tokenizer=byte_tokenizer())
    prompt = lm.encode("The quick brown fox jumps over the lazy dog.")
    assert prompt[0] == 256 and lm.encode(WORDS)[1:] == bare.encode(WORDS)
    told, own = kvjax.methods.dapq(20), kvjax.methods.dapq(20, suffix=tuple(bare.encode(WORDS)))
    pre = kvjax.prefill(lm, prompt, needs=told)
    got, want = (kvjax.score_prompt(kvjax.second_pass(lm, pre, policy), policy).rows[0].scores for policy in (told, own))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("form", ["$A", "<eos> $A", "$A <eos>", "<eos> $A <eos>"])
def test_words_inside_a_text(lm, form):
    assert ids_inside(framed(lm, form), "words") == byte_tokenizer().encode("words")


def test_without_a_second_pass_it_says_what_to_do(lm):
    policy = policy_at(20)
    with pytest.raises(ValueError, match="second_pass"):
        kvjax.compress(kvjax.prefill(lm, ids_of(40), needs=policy), policy)


@pytest.mark.parametrize("wrong", [{"size": 0, "front": 0}, {"front": 40}, {"suffix": ()}])
def test_pseudo_queries_need_tokens(wrong):
    with pytest.raises(ValueError, match="pseudo queries"):
        PseudoQueries(**wrong)
