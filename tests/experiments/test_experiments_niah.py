"""Needles on a grid of depths, several needles, and key-value retrieval: found again by parsers that share no code."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvjax
from experiments.tasks.answering import Answering
from experiments.tasks.chat import encode_plain
from experiments.tasks.example import Read
from experiments.tasks.generated import total
from experiments.tasks.keyvalue import KEY_VALUE
from experiments.tasks.niah import GRID, MULTI, DepthGrid, places
from tests.experiments.conftest import TEXT

NEEDLE = re.compile(r"One of the special magic numbers for (\S+) is: (\d{7})\. ?")


@pytest.fixture(scope="module")
def haystack(talker):
    return encode_plain(talker, TEXT)


def made(task, talker, haystack, length, count=1, seed=0, **how):
    return list(task.examples(talker, length, count, seed, haystack=haystack, **{"mode": "unseen", **how}))


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10**6), index=st.integers(0, 25), needles=st.integers(1, 5), length=st.integers(3000, 5000))
def test_needles_are_hidden_once_at_the_depths_of_the_grid(talker, haystack, seed, index, needles, length):
    task = DepthGrid("grid", depths=6, needles=needles)
    (example,) = made(task, talker, haystack, length, index + 1, seed, start=index)
    assert 0.98 * length <= total(example) <= length
    first = index % 6 / 5
    assert example.meta["depth"] == first
    context, question = talker.decode(example.context), talker.decode(example.question)
    text = context.partition("afterwards.\n")[2]
    found = dict(NEEDLE.findall(text))
    asked = re.split(r", and |, ", re.search(r" for (.*) mentioned", question)[1])
    assert tuple(found[key] for key in asked) == example.references
    assert len(found) == needles == len(NEEDLE.findall(text))
    plain = len(NEEDLE.sub("", text))
    for j, key in enumerate(asked):
        before = NEEDLE.sub("", text[: text.index(f"for {key} is")].rpartition("One of")[0])
        depth = first + j * (1 - first) / needles
        assert depth * plain - 60 <= len(before) <= depth * plain + 1  # the longest sentence of the text has 45 letters
        assert before.rstrip()[-1:] in ("", ".", "!", "?") or depth == 1


def test_as_many_prompts_as_depths_are_one_pass_over_the_grid(talker, haystack):
    found = [x.meta["depth"] for x in made(GRID, talker, haystack, 1500, 20)]
    assert found == pytest.approx([i / 9 for i in range(10)] * 2)
    texts = [talker.decode(x.context) for x in made(GRID, talker, haystack, 1500, 10)]
    assert texts[0].partition("afterwards.\n")[2].startswith("One of the special") and texts[9].endswith(".")
    assert texts[9].rpartition("One of the special")[2].count(".") == 1


def test_places_are_whole_sentences_before_a_depth():
    parts = ["aaaa", "bbb", "cccccc"]  # with the space after each: 5, 9, 16 characters
    assert places(parts, [0, 0.3, 5 / 16, 0.5, 9 / 16, 0.99, 1]) == [0, 0, 1, 1, 2, 2, 3]


def test_a_grid_of_one_depth_is_refused(talker, haystack):
    with pytest.raises(ValueError, match="2 depths and 1 needle at least; got 1"):
        DepthGrid(depths=1)
    for task in (GRID, MULTI, KEY_VALUE):
        with pytest.raises(ValueError, match="too short for"):
            made(task, talker, haystack, 100)
        with pytest.raises(ValueError, match="none of unseen, seen"):
            made(task, talker, haystack, 3000, mode="-")


@pytest.mark.parametrize("task", [GRID, MULTI, KEY_VALUE], ids=lambda task: task.NAME)
def test_both_modes_are_the_same_tokens_and_any_prompt_can_be_made_alone(talker, haystack, task):
    unseen, seen = (made(task, talker, haystack, 2000, 3, mode=mode) for mode in ("unseen", "seen"))
    assert [x.compressed + x.fed for x in unseen] == [x.compressed + x.fed for x in seen]
    assert [x.compressed for x in unseen] == [x.context for x in seen]
    assert made(task, talker, haystack, 2000, 3, start=2) == unseen[2:]
    assert len({x.context for x in unseen}) == 3 and made(task, talker, haystack, 2000, seed=5) != unseen[:1]


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10**6), length=st.integers(6000, 9000))
def test_the_object_is_json_and_holds_the_value(talker, haystack, seed, length):
    (example,) = made(KEY_VALUE, talker, haystack, length, seed=seed)
    assert 0.98 * length <= total(example) <= length
    context, question = talker.decode(example.context), talker.decode(example.question)
    pairs = json.loads(context.partition("JSON data:\n")[2], object_pairs_hook=list)
    key = re.fullmatch(r'\n\nKey: "(.*)"', question)[1]
    assert (dict(pairs)[key],) == example.references and len(dict(pairs)) == len(pairs) == example.meta["pairs"]
    assert [k for k, _ in pairs].index(key) == round(example.meta["depth"] * (len(pairs) - 1))
    assert context.count(key) == context.count(example.references[0]) == 1
    assert all(re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", text) for pair in pairs for text in pair)
    assert talker.decode(example.prefix) == "\nCorresponding value:"


CASES = [  # answer, references, share of the needles (Kamradt's several needles), value contained (Liu et al.)
    ("", ("1234567",), 0, 0),
    (" 1234567.", ("1234567",), 1, 1),
    (" 1234567, 7654321", ("1234567", "7654321", "1111111"), 2 / 3, 1),
    (" 7654321 and 1234567", ("1234567", "7654321"), 1, 1),
    (" 1,234,567", ("1234567",), 0, 0),
    (" 12345678", ("1234567",), 1, 1),
    (" ABCDEF-12", ("abcdef-12",), 1, 1),
    (" abcdef-12", ("ABCDEF-12", "zz"), 0.5, 1),
    (" １２３４５６７", ("1234567",), 0, 0),  # full-width digits are other characters
    ("Ünïcode 1234567", ("1234567", "ünïcode"), 1, 1),
    ("\n\n1234567\n", ("1234567",), 1, 1),
    (" 1111111 1111111", ("1111111", "2222222", "3333333", "4444444"), 0.25, 1),
]


@pytest.mark.parametrize(("answer", "references", "share", "contained"), CASES)
def test_answers_are_judged_by_the_values_they_contain(answer, references, share, contained):
    assert GRID.grade(answer, references) == MULTI.grade(answer, references) == pytest.approx(share)
    assert KEY_VALUE.grade(answer, references) == contained


@pytest.mark.slow
def test_a_sweep_can_measure_them(talker, haystack):
    (example,) = made(GRID, talker, haystack, 700)
    policy = kvjax.methods.streaming_llm(budget=64)
    pre = kvjax.prefill(talker, list(example.compressed), needs=[policy])
    (row,) = Answering(GRID).measure(talker, kvjax.compress(pre, policy), policy, [Read(example, pre)])
    assert row["score"] == GRID.grade(row["answer"], example.references)


@pytest.mark.slow
@pytest.mark.parametrize("task", [GRID, MULTI, KEY_VALUE], ids=lambda task: task.NAME)
def test_prompts_of_the_real_model_fit_their_length(haystack, task):
    import models
    from experiments.tasks import text

    lm = models.load("smollm2-135m")
    ids = encode_plain(lm, text.haystack().text)
    for example in made(task, lm, ids, 5000, 3):
        assert 4900 <= total(example) <= 5000
        context = lm.decode(example.context)
        assert [context.count(reference) for reference in example.references] == [1] * len(example.references)
