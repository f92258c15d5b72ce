"""Tasks of our own that small models can be asked: counting with a distant key, labels from examples, paraphrased needles."""

import re

import pytest

from experiments.tasks.chat import encode_plain
from experiments.tasks.counting import COUNTED, COUNTING, GIVEN, last_number, numbers
from experiments.tasks.generated import total
from experiments.tasks.intents import INTENTS, TOPICS
from experiments.tasks.paraphrase import KINDS, LITERAL, NAMES, PARAPHRASE, Paraphrase
from tests.experiments.conftest import TEXT

IDLE = {"the", "a", "an", "of", "in", "from", "as", "which", "has", "is", "with", "without", "to", "his", "her", "and"}


@pytest.fixture(scope="module")
def haystack(talker):
    return encode_plain(talker, TEXT)


def made(task, lm, haystack, length, count=3, seed=0, mode="unseen"):
    return list(task.examples(lm, length, count, seed, haystack=haystack, mode=mode))


@pytest.mark.parametrize("task", [COUNTING, GIVEN, INTENTS, PARAPHRASE, LITERAL], ids=lambda task: task.NAME)
def test_prompts_are_drawn_from_the_seed_and_fit(reader, haystack, task):
    found = made(task, reader, haystack, 3000)
    assert found == made(task, reader, haystack, 3000) != made(task, reader, haystack, 3000, seed=1)
    assert all(2800 <= total(example) <= 3000 and example.task == task.NAME for example in found)
    with pytest.raises(ValueError, match=f"too short for {task.NAME}"):
        made(task, reader, haystack, 40)


def test_the_count_needs_1024_tokens(reader, haystack):
    last = last_number(reader)
    assert len(numbers(last)) >= COUNTED > len(numbers(last - 10)) and numbers(3) == "1\n2\n3\n"
    counting, given = (made(task, reader, haystack, 3000, 1)[0] for task in (COUNTING, GIVEN))
    assert counting.new_tokens == len(numbers(last)) + 48 and given.new_tokens == 24
    fed = reader.decode(given.fed)
    word = re.search(r"The code of the (\w+) is (\d{5})\.", reader.decode(counting.context))
    assert fed.endswith(f"\n{last - 1}\n{last}\nThe code of the {word[1]} is") and numbers(last) in fed
    assert counting.references == given.references == (word[2], str(last))


@pytest.mark.parametrize(
    ("answer", "score", "counted"),
    [
        ("1\n2\n3\nThe code of the owl is 12345.", 1, 1),
        ("1\n2\n3\n12345", 1, 1),
        ("12345\n1\n2\n3\n", 0, 0),  # before the count
        ("1\n2\n4\n3\n12345", 1, 2 / 3),
        ("1\n2\n12345", 0, 2 / 3),  # the count was not finished
        ("1\n2\n3\n123456", 0, 1),
        ("", 0, 0),
    ],
)
def test_the_code_counts_after_the_last_number(answer, score, counted):
    assert COUNTING.grade(answer, ("12345", "3")) == score
    assert COUNTING.also(answer, ("12345", "3")) == pytest.approx({"counted": counted})


def test_a_given_count_leaves_the_code_to_say():
    assert GIVEN.grade(" 12345.", ("12345", "3")) == 1 and GIVEN.grade(" 1234", ("12345", "3")) == 0
    assert GIVEN.also("12345", ("12345", "3")) == {}


def test_labels_are_told_by_the_examples_alone(reader, haystack):
    for example in made(INTENTS, reader, haystack, 3000):
        shots = re.findall(r"Text: (.*)\nLabel: (\w+)\n\n", reader.decode(example.context))
        about = lambda text: next(name for name, words in TOPICS.items() if any(f" {word}" in text for word in words))  # noqa: E731
        labels = {about(text): label for text, label in shots}
        assert len(labels) == len(set(labels.values())) == 6 and all(labels[about(text)] == label for text, label in shots)
        assert example.meta["shots"] == len(shots) > 30
        asked = reader.decode(example.question).removeprefix("Text: ")
        assert labels[about(asked)] == example.references[0] == labels[example.meta["topic"]]
        assert reader.decode(example.fed).endswith("\nLabel:")


@pytest.mark.parametrize(
    ("answer", "score"), [(" coral\n", 1), ("Coral.", 1), ("coral reef", 1), ("the coral", 0), ("corals", 0), ("", 0)]
)
def test_the_first_word_is_the_label(answer, score):
    assert INTENTS.grade(answer, ("coral",)) == score


def lemmas(text):
    words = re.findall(r"[a-z]+", text.lower())
    return {re.sub(r"(ing|ed|es|s)$", "", word) for word in words if word not in IDLE}


def test_needles_and_their_questions_share_no_word():
    for kind in KINDS:
        assert len(kind.facts) == len(dict(kind.facts)) == len({meaning for _, meaning in kind.facts}) == 8
        for thing, meaning in kind.facts:
            needle = lemmas(kind.needle.format(name="", thing=thing))
            assert not needle & lemmas(kind.question.format(meaning=meaning)), (thing, meaning)
            assert lemmas(thing) <= needle & lemmas(kind.literal.format(thing=thing))
    assert not any(part in TEXT for name in NAMES for part in name.split())


def test_one_name_is_right_and_the_twin_differs_in_its_question(reader, haystack):
    for plain, literal in zip(made(PARAPHRASE, reader, haystack, 2000, 8), made(LITERAL, reader, haystack, 2000, 8), strict=True):
        text, question = reader.decode(plain.context), reader.decode(plain.question)
        told = [name for name in NAMES if name in text]
        (needle,) = [line for line in re.split(r"(?<=\.) ", text) if plain.references[0] in line]
        kind = next(kind for kind in KINDS if lemmas(kind.question.format(meaning="")) <= lemmas(question))
        meaning = dict(kind.facts)[next(thing for thing, _ in kind.facts if thing in needle)]
        assert len(told) == 3 and meaning in question and meaning not in text
        assert literal.references == plain.references and literal.question != plain.question
    with pytest.raises(ValueError, match="0 to 7 distractors; got 8"):
        Paraphrase(distractors=8)
