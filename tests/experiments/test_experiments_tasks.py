"""Prompts: the same wherever they are made, within their length, cut where the question mode says."""

import hashlib
import json
import random

import jax
import jax.numpy as jnp
import pytest

import kvjax
from experiments.tasks import needle, ppl, text
from experiments.tasks.answering import Answering
from experiments.tasks.chat import continuation, encode_plain, frame
from experiments.tasks.conversation import next_turn
from experiments.tasks.example import Read
from experiments.tasks.protocol import KVPRESS, Asked
from tests.experiments.conftest import DATED, PLAIN, TEXT, THINKING, byte_tokenizer


@pytest.fixture(scope="module")
def haystack(talker):
    return encode_plain(talker, TEXT)


def needles(talker, haystack, mode="unseen", length=500, count=3, **more):
    return list(needle.examples(talker, length, count, 0, haystack=haystack, mode=mode, **more))


def test_a_needle_is_hidden_once_between_sentences(talker, haystack):
    for example in needles(talker, haystack):
        words = talker.decode(example.context)
        hidden = f" One of the special magic numbers for {example.meta['key']} is: {example.references[0]}."
        assert words.count(hidden) == 1
        before = words.partition(hidden)[0]
        assert before.rstrip(" ").endswith((".", "\n"))
        assert len(example.context) <= 500
        assert example.meta["key"] in talker.decode(example.question)


def test_prompts_repeat_and_differ_by_index(talker, haystack):
    first, again = needles(talker, haystack), needles(talker, haystack)
    assert first == again and len({example.context for example in first}) == 3
    assert needles(talker, haystack, start=2) == first[2:]


def test_the_question_is_compressed_only_when_seen(talker, haystack):
    unseen, seen = needles(talker, haystack)[0], needles(talker, haystack, mode="seen")[0]
    assert unseen.compressed == unseen.context and unseen.fed == unseen.question + unseen.prefix
    assert seen.compressed == seen.context + seen.question and seen.fed == seen.prefix
    assert unseen.compressed + unseen.fed == seen.compressed + seen.fed


def test_too_short_and_unknown_mode_are_refused(talker, haystack):
    with pytest.raises(ValueError, match="too short for a needle"):
        needles(talker, haystack, length=100)
    with pytest.raises(ValueError, match="none of unseen, seen"):
        needles(talker, haystack, mode="maybe")
    with pytest.raises(ValueError, match="give a longer --text"):
        needles(talker, haystack[:50])


def test_the_answer_is_judged_as_text_after_the_prefix(talker, haystack):
    example = needles(talker, haystack)[0]
    pre = kvjax.prefill(talker, list(example.compressed), needs=frozenset())
    cache = kvjax.compress(pre, kvjax.methods.full())
    (grade,) = Answering(needle).measure(talker, cache, kvjax.methods.full(), [Read(example, pre)])
    whole = kvjax.prefill(talker, list(example.compressed + example.fed), needs=frozenset())
    first = int(whole.rows[0].logits.argmax())
    assert grade["score"] == 0 and grade["answer"].startswith(continuation(talker, example.prefix, [first]))


def test_perplexity_of_a_full_cache_is_the_models_own(talker, haystack):
    example = next(ppl.examples(talker, 64, 1, 0, haystack=haystack))
    full = kvjax.methods.full()
    pre = kvjax.prefill(talker, list(example.context), needs=frozenset())
    cache = kvjax.compress(pre, full)
    grades = ppl.measure(talker, kvjax.stack([cache, cache]), full, [Read(example, pre)] * 2)
    everything = list(example.context + example.answer)
    logits = kvjax.prefill(talker, everything, needs=frozenset(), all_logits=True).rows[0].all_logits
    logp = jax.nn.log_softmax(logits[63 : len(everything) - 1])
    want = -float(logp[jnp.arange(256), jnp.asarray(example.answer)].mean())
    assert [g["nll"] for g in grades] == pytest.approx([want, want], abs=1e-4)


def test_stretches_are_drawn_from_seed_length_and_index(talker, haystack):
    """As `ppl` says: by `random.Random(f"{seed}/ppl/{length}/{i}")`, among the places that leave room for the stretch."""
    for seed, length in ((0, 64), (1, 64), (1, 80)):
        found = list(ppl.examples(talker, length, 3, seed, haystack=haystack))
        last = len(haystack) - length - 257
        assert [x.meta["begin"] for x in found] == [random.Random(f"{seed}/ppl/{length}/{i}").randrange(last) for i in range(3)]
        begin = found[2].meta["begin"]
        assert found[2].context + found[2].answer == tuple(haystack[begin : begin + length + 256])


def test_a_model_without_a_template_is_asked_plainly(talker):
    assert frame(talker) == ("", "\n")


def test_prompts_are_the_same_on_all_days(talker):
    """A template that writes the day of today is told one and the same."""
    tokenizer = byte_tokenizer()
    tokenizer.inner.chat_template = DATED
    assert frame(talker.replace(tokenizer=tokenizer)) == ("26 Jul 2024<user>", "<bot>")


def test_a_template_that_thinks_is_asked_not_to(talker):
    """As Qwen3's: thinking is the default, and an empty thought before the answer ends it."""
    tokenizer = byte_tokenizer()
    tokenizer.inner.chat_template = THINKING
    lm = talker.replace(tokenizer=tokenizer)
    assert frame(lm) == ("<user>", "<bot><think></think>") and next_turn(lm) == "<user>"
    cut = KVPRESS.cut(lm, Asked("A text. ", "Q?", "A:"), 100, "unseen")
    assert lm.decode(cut.context + cut.question) == "<user>A text. Q?<bot><think></think>A:"
    assert frame(lm, thinking=True) == ("<user>", "<bot>")
    tokenizer.inner.chat_template = PLAIN
    assert frame(lm) == ("<user>", "<bot>")


def test_a_text_file_serves_as_haystack(tmp_path):
    file = tmp_path / "t.txt"
    file.write_text("words")
    assert text.haystack(file).text == "words"
    file.write_text(" \n")
    with pytest.raises(ValueError, match="no text"):
        text.haystack(file)


def test_without_pip_the_standard_library_stands_in(tmp_path, monkeypatch):
    monkeypatch.setenv("KVJAX_CACHE", str(tmp_path))
    monkeypatch.setattr(text.sys, "executable", str(tmp_path / "no-python"))
    with pytest.warns(UserWarning, match="pydoc_data.topics"):
        found = text.haystack()
    assert found.source == "pydoc_data.topics" and len(found.text) > 100_000
    assert not list((tmp_path / "texts").glob("*.txt"))


def test_an_answer_is_right_if_it_begins_with_the_number():
    assert [needle.grade(x, ("123",)) for x in (" 123.", " 1234", "123", " 12", "")] == [1, 1, 0, 0, 0]


@pytest.mark.slow
def test_prompts_of_the_real_model_are_the_published_ones():
    """Ids whose scores stand beside kvpress's; digests of the prompts that those were measured on."""
    import models

    lm = models.load("smollm2-135m")
    ids = encode_plain(lm, text.haystack().text)
    assert len(ids) == 153_955
    found = [
        hashlib.sha256(json.dumps([x.context, x.question, x.prefix, answer]).encode()).hexdigest()[:16]
        for x in needle.examples(lm, 1024, 3, 0, haystack=ids, mode="unseen")
        for answer in [encode_plain(lm, " " + x.references[0])]
    ]
    assert found == ["25c74cb4c50985e6", "5d1e70c5a71d230f", "ac5d0d48968693a0"]
