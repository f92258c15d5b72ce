"""Conversations: every turn is asked over the same cache, whose rows go on alone, and says what a fresh start would say."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvjax
from experiments.tasks.chat import continuation, encode_plain
from experiments.tasks.conversation import CONVERSATION, Conversation, following, next_turn
from experiments.tasks.example import Read
from experiments.tasks.generated import total
from tests.experiments.conftest import TEXT, byte_tokenizer

FULL = kvjax.methods.full()
TWO = Conversation(turns=2)


@pytest.fixture(scope="module")
def haystack(talker):
    return encode_plain(talker, TEXT)


@pytest.fixture(scope="module")
def chatty(talker):
    """The toy model with a chat template whose turns end in the stop token."""
    tokenizer = byte_tokenizer()
    tokenizer.inner.chat_template = (
        "{% for turn in messages %}<{{ turn['role'] }}>{{ turn['content'] }}<eos>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    return talker.replace(tokenizer=tokenizer)


def made(lm, haystack, length=950, count=1, seed=0, task=TWO, **how):
    return list(task.examples(lm, length, count, seed, haystack=haystack, **{"mode": "unseen", **how}))


def fresh_start(lm, before, turn, example):
    """Tokens that answer `turn` when all that was said before it is prefilled anew."""
    pre = kvjax.prefill(lm, [*before, *turn], needs=frozenset())
    out = kvjax.decode(lm, kvjax.compress(pre, FULL), FULL, max_new_tokens=example.new_tokens, stop=example.stop)
    return [int(token) for token in out.tokens[0][: int(out.lengths[0])]]


def heard(lm, ids, said, example):
    return continuation(lm, ids, [token for token in said if token not in example.stop])


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6), turns=st.integers(1, 5), length=st.integers(3000, 5000))
def test_each_turn_asks_for_a_needle_of_the_document(talker, haystack, seed, turns, length):
    (example,) = made(talker, haystack, length, seed=seed, task=Conversation(turns=turns))
    assert 0.98 * length <= total(example) <= length
    assert total(example) == len(example.context + example.question + example.prefix) + sum(map(len, example.later)) + 32 * turns
    context = talker.decode(example.context)
    hidden = dict(re.findall(r"One of the special magic numbers for (\S+) is: (\d{7})\.", context))
    asked = [re.search(r"number for (\S+) mentioned", talker.decode(ids))[1] for ids in (example.question, *example.later)]
    assert tuple(hidden[key] for key in asked) == example.references and len(hidden) == turns == len(set(asked))
    assert [context.count(reference) for reference in example.references] == [1] * turns


@pytest.mark.parametrize("mode", ["unseen", "seen"])
def test_only_the_first_question_is_ever_compressed(talker, haystack, mode):
    (example,) = made(talker, haystack, mode=mode)
    assert (len(example.compressed) == len(example.context)) is (mode == "unseen")
    assert example.compressed + example.fed == example.context + example.question + example.prefix
    assert talker.decode(example.later[0]).startswith("\nWhat is the special magic number for")


def test_prompts_repeat_and_can_be_made_alone(talker, haystack):
    first = made(talker, haystack, count=3)
    assert made(talker, haystack, count=3) == first and made(talker, haystack, count=3, start=2) == first[2:]
    assert len({example.context for example in first}) == 3


def test_lengths_and_turns_that_cannot_be_had_are_refused(talker, haystack):
    with pytest.raises(ValueError, match="too short for conversation"):
        made(talker, haystack, 300)
    with pytest.raises(ValueError, match="none of unseen, seen"):
        made(talker, haystack, mode="-")
    with pytest.raises(ValueError, match="1 turn at least; got 0"):
        Conversation(turns=0)


def test_turns_stand_in_the_chat_template(chatty, talker, haystack):
    assert next_turn(talker) == "\n" and next_turn(chatty) == "<eos><user>"
    (example,) = made(chatty, haystack)
    assert chatty.decode(example.context).startswith("<user>Some special")
    assert chatty.decode(example.prefix).startswith("<eos><assistant> The special")
    assert re.fullmatch(r"<eos><user>What is .*\?<eos><assistant> The special .* is", chatty.decode(example.later[0]))


def test_a_template_that_rewrites_the_turns_is_refused(talker):
    tokenizer = byte_tokenizer()
    tokenizer.inner.chat_template = "{{ messages[0]['content'] }}"
    with pytest.raises(ValueError, match="does not repeat the turns' words"):
        next_turn(talker.replace(tokenizer=tokenizer))


def test_a_stop_token_that_ended_the_answer_is_not_fed_twice():
    assert following([1, 9], [9, 5], stop=(9,)) == [5]
    assert following([1, 2], [9, 5], stop=(9,)) == [9, 5]
    assert following([1, 8], [9, 5], stop=(8, 9)) == [9, 5]
    assert following([], [9, 5], stop=(9,)) == [9, 5]
    assert following([5], [5, 5], stop=()) == [5, 5]


@pytest.mark.slow
def test_over_a_full_cache_every_turn_says_what_a_fresh_start_says(chatty, haystack):
    (example,) = made(chatty, haystack)
    pre = kvjax.prefill(chatty, list(example.compressed), needs=frozenset())
    cache = kvjax.compress(pre, FULL)
    asked = kvjax.extend(chatty, cache, list(example.fed), FULL).cache
    first = kvjax.decode(chatty, asked, FULL, max_new_tokens=32, stop=()).tokens[0].tolist()
    # the toy model never says its stop token: one that it does say ends its answers here, and opens the next turn
    ending, said = first[3], first[: first.index(first[3]) + 1]
    cut = replace(example, stop=(ending,), later=((ending, *example.later[0][1:]),))
    (row,) = CONVERSATION.measure(chatty, cache, FULL, [Read(cut, pre)])
    second = fresh_start(chatty, [*cut.compressed, *cut.fed, *said], cut.later[0][1:], cut)
    assert row["answers"] == [heard(chatty, cut.fed, said, cut), heard(chatty, cut.later[0], second, cut)]
    assert row["scores"] == [0, 0] and row["score"] == 0
    (again,) = CONVERSATION.measure(chatty, cache, FULL, [Read(replace(cut, references=("", "never said")), pre)])
    assert again["scores"] == [1, 0] and again["score"] == 0.5 and again["answers"] == row["answers"]


@pytest.mark.slow
def test_rows_of_a_batch_go_on_alone(talker, haystack):
    policies = [FULL, kvjax.methods.snapkv(budget=96)]
    (example,) = made(talker, haystack)
    pre = kvjax.prefill(talker, list(example.compressed), needs=policies)
    caches = [kvjax.compress(pre, policy) for policy in policies]
    together = CONVERSATION.measure(talker, kvjax.stack(caches), FULL, [Read(example, pre)] * len(caches))
    alone = [CONVERSATION.measure(talker, cache, FULL, [Read(example, pre)])[0] for cache in caches]
    assert together == alone and alone[0]["answers"] != alone[1]["answers"]


@pytest.mark.parametrize(("answer", "references", "score"), [
    ("", ("1234567",), 0),
    (" 1234567.", ("1234567",), 1),
    (" it is 1234567, I said", ("1234567",), 1),
    (" 123456", ("1234567",), 0),
    (" 12345678", ("1234567",), 1),
    (" 7654321", ("1234567", "7654321"), 1),
    (" Äpfel", ("äPFEL",), 1),
    (" １", ("1",), 0),
    ("\n1234567\n", ("1234567",), 1),
    (" 123 4567", ("1234567",), 0),
    (" 1,234,567", ("1234567",), 0),
])  # fmt: skip
def test_a_turn_is_right_if_its_answer_has_the_number(answer, references, score):
    assert CONVERSATION.grade(answer, references) == score


@pytest.mark.slow
def test_the_real_model_goes_on_as_from_a_fresh_start():
    import models
    from experiments.tasks import text

    lm = models.load("smollm2-135m")
    ids = encode_plain(lm, text.haystack().text)
    (example,) = made(lm, ids, 1024, task=CONVERSATION)
    assert 1003 <= total(example) <= 1024
    pre = kvjax.prefill(lm, list(example.compressed), needs=frozenset())
    (row,) = CONVERSATION.measure(lm, kvjax.compress(pre, FULL), FULL, [Read(example, pre)])
    before, said = list(example.compressed), []
    for answer, turn in zip(row["answers"], (example.fed, *example.later), strict=True):
        before, turn = before + said, following(said, turn, example.stop)
        said = fresh_start(lm, before, turn, example)
        assert answer == heard(lm, turn, said, example)
        before += turn
    assert row["scores"][0] == 1
