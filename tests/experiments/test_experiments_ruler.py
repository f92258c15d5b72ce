"""RULER's tasks: graded as the benchmark grades, as long as asked for, their answers found again by parsers that share no code."""

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.tasks.chat import encode_plain
from experiments.tasks.essays import between, sentences
from experiments.tasks.generated import largest, total
from experiments.tasks.ruler import tasks
from experiments.tasks.ruler.common_words import LONG, numbered
from experiments.tasks.ruler.frequent_words import LEAST, zeta_counts
from experiments.tasks.ruler.haystacks import DEPTHS
from experiments.tasks.ruler.match import string_match_all, string_match_part
from experiments.tasks.ruler.variables import VariableTracking
from tests.experiments.conftest import TEXT

NAMES = [task.NAME for task in tasks(Path("nowhere"))]
GENERATED = NAMES[:11]
NEEDLE = re.compile(r"One of the special magic (numbers|uuids) for (\S+) is: (\S+)\.(?=\s|$)")
#: task -> keys hidden (None: any number), values of each, keys asked for, as the benchmark's synthetic.yaml has them
SETTINGS = {
    "niah_single_1": (1, 1, 1), "niah_single_2": (1, 1, 1), "niah_single_3": (1, 1, 1), "niah_multikey_1": (4, 1, 1),
    "niah_multikey_2": (None, 1, 1), "niah_multikey_3": (None, 1, 1), "niah_multivalue": (1, 4, 1), "niah_multiquery": (4, 1, 4),
}  # fmt: skip


@pytest.fixture(scope="module")
def haystack(talker):
    return encode_plain(talker, TEXT)


@pytest.fixture(scope="module")
def by_name(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qa")
    (folder / "dev-v2.0.json").write_text(json.dumps(squad_file()), encoding="utf-8")
    (folder / "hotpot_dev_distractor_v1.json").write_text(json.dumps(hotpot_file()), encoding="utf-8")
    return {task.NAME: task for task in tasks(folder)}


def squad_file():
    """Three articles of four paragraphs; each paragraph has an answerable question and an impossible one."""
    towns = [[f"{a}{p}" for p in range(4)] for a in "abc"]
    write = lambda name: f"Town {name} lies on river Ñandú-{name}. " + f"It has a mill and {name[1]} bridges. " * 6  # noqa: E731
    return {"version": "v2.0", "data": [{"title": "t", "paragraphs": [paragraph(write(n)) for n in names]} for names in towns]}


def paragraph(text):
    river = text.split("river ")[1].split(".")[0]
    asked = {"question": f"Where does {text[:7]} lie?", "id": "1", "is_impossible": False}
    answers = [{"text": river, "answer_start": text.index(river)}, {"text": f"river {river}", "answer_start": 0}]
    return {"context": text, "qas": [{**asked, "answers": answers}, {"question": "Who?", "is_impossible": True, "answers": []}]}


def hotpot_file():
    """Twelve questions, each with ten documents of two sentences; neighbours share nine of them."""
    documents = [[f"Title {i}", [f"Person {i} wrote book {i * 111}.", " It was read by many people. " * 3]] for i in range(24)]
    asked = [(f"Which book did person {i} write?", f"book {i * 111}") for i in range(12)]
    return [{"question": q, "answer": a, "context": documents[i : i + 10]} for i, (q, a) in enumerate(asked)]


def made(task, talker, haystack, length, seed=0, **how):
    how = {"mode": "unseen", "count": 1, **how}
    return list(task.examples(talker, length, how.pop("count"), seed, haystack=haystack, **how))


# metrics: values by hand from string_match_all and string_match_part of the benchmark

CASES = [  # answer, references, all, part
    ("", ("1",), 0, 0),
    ("the value is 1234567.", ("1234567",), 1, 1),
    ("12345678", ("1234567",), 1, 1),  # containment, not equality
    ("1234567", ("12345678",), 0, 0),
    ("a, b", ("a", "b"), 1, 1),
    ("a", ("a", "b"), 0.5, 1),
    ("b b b", ("a", "b", "c", "d"), 0.25, 1),
    ("PARIS", ("paris",), 1, 1),
    ("straße in ÅRHUS", ("STRASSE", "århus"), 0.5, 1),  # lower-cased, not case-folded
    ("東京と大阪", ("東京", "大阪", "京都"), 2 / 3, 1),
    ("x\ty", ("x\ty",), 0, 0),  # control characters become line breaks first
    ("x\ty", ("x\ny",), 1, 1),
    ("  \x00 yes \x1f", ("yes",), 1, 1),
    ("anything", ("",), 1, 1),
    ("same same", ("same", "same"), 1, 1),
    ("\n", ("a", "b"), 0, 0),
]


@pytest.mark.parametrize(("answer", "references", "every", "part"), CASES)
def test_answers_are_matched_as_the_benchmark_matches_them(answer, references, every, part):
    assert string_match_all(answer, references) == pytest.approx(every)
    assert string_match_part(answer, references) == part


def test_an_answer_without_references_is_refused():
    with pytest.raises(ValueError, match="at least one reference"):
        string_match_all("a", ())


@pytest.mark.parametrize("name", NAMES)
def test_tasks_generate_and_grade_as_the_benchmark_does(by_name, name):
    task, tokens = by_name[name], {"vt": 30, "cwe": 120, "fwe": 50, "qa_1": 32, "qa_2": 32}
    assert task.new_tokens == tokens.get(name, 128)
    assert task.grade("only b", ("a", "b")) == (1 if name.startswith("qa") else 0.5)


# parsers of prompts: nothing of the generators is used below


def parsed_needles(name, context, question):
    """Values of the keys that the question names, and what is hidden: (answers, {key: values})."""
    hidden = {}
    for _, key, value in NEEDLE.findall(context):
        hidden.setdefault(key, []).append(value)
    asked = re.search(r" for (.*) mentioned in the provided text\?$", question)[1]
    keys = re.split(r", and |, ", asked)
    return keys, hidden


def parsed_variables(context, question):
    lines = context[context.rindex("Memorize and track") :].split("\n")
    value = re.search(r"assigned the value (\d+) in", question)[1]
    held = {}
    for line in lines:
        if found := re.fullmatch(r"VAR ([A-Z]{5}) = (?:VAR )?(\w+) ?", line):
            held[found[1]] = held.get(found[2], found[2])
    return {name for name, number in held.items() if number == value}, held


def parsed_counts(context):
    entries = re.findall(r"(\d+)\. ([a-z]+)", context[context.rindex("Memorize the ones") :])
    assert [int(number) for number, _ in entries] == list(range(1, len(entries) + 1))
    return Counter(word for _, word in entries)


def right(name, context, question):
    """The set of answers that a parser finds in the text."""
    if name.startswith("niah"):
        keys, hidden = parsed_needles(name, context, question)
        return {value for key in keys for value in hidden[key]}
    if name == "vt":
        return parsed_variables(context, question)[0]
    if name == "cwe":
        return {word for word, _ in parsed_counts(context).most_common(10)}
    coded = Counter(re.findall(r"\b[a-z]{6}\b|\.\.\.", context.partition("coded words. ")[2]))
    del coded["..."]
    return {word for word, _ in coded.most_common(3)}


@pytest.mark.parametrize("name", GENERATED)
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 10**6), length=st.integers(7000, 9000))
def test_prompts_are_as_long_as_asked_and_hold_their_answer(talker, haystack, by_name, name, seed, length):
    (example,) = made(by_name[name], talker, haystack, length, seed)
    assert 0.98 * length <= total(example) <= length
    assert total(example) == len(example.context + example.question + example.prefix) + by_name[name].new_tokens
    context, question = talker.decode(example.context), talker.decode(example.question)
    assert right(name, context, question) == set(example.references)
    assert len(set(example.references)) == len(example.references)


@pytest.mark.parametrize("name", SETTINGS)
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_needles_are_there_as_often_as_the_task_says(talker, haystack, by_name, name, seed):
    (example,) = made(by_name[name], talker, haystack, 4000, seed)
    context = talker.decode(example.context)
    asked, hidden = parsed_needles(name, context, talker.decode(example.question))
    keys, values, queries = SETTINGS[name]
    assert len(hidden) == keys or (keys is None and len(hidden) > 10)
    assert {len(found) for found in hidden.values()} == {values} and len(set(asked)) == queries
    for value in example.references:
        assert context.count(value) == 1
    uuid = name in ("niah_single_3", "niah_multikey_3")
    shape = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}" if uuid else r"[1-9][0-9]{6}"
    assert all(re.fullmatch(shape, value) for value in example.references)


@pytest.mark.parametrize("name", NAMES)
def test_both_modes_are_the_same_tokens_and_any_prompt_can_be_made_alone(talker, haystack, by_name, name):
    unseen = made(by_name[name], talker, haystack, 7000, count=2)
    seen = made(by_name[name], talker, haystack, 7000, count=2, mode="seen")
    assert [x.compressed + x.fed for x in unseen] == [x.compressed + x.fed for x in seen]
    assert unseen[0].compressed == unseen[0].context and seen[0].fed == seen[0].prefix
    assert made(by_name[name], talker, haystack, 7000, count=2, start=1) == unseen[1:]
    assert unseen[0].context != unseen[1].context and unseen[0].stop == talker.stop_ids
    assert made(by_name[name], talker, haystack, 7000, seed=1) != unseen[:1]


def test_chains_are_five_variables_in_their_order_after_a_solved_example(talker, haystack, by_name):
    (example,) = made(by_name["vt"], talker, haystack, 5000)
    context = talker.decode(example.context)
    solved, _, asked = context.rpartition("Memorize and track")
    places = [asked.index(f"VAR {name} = ") for name in example.references]
    assert len(places) == 5 and places == sorted(places)
    value, answers = re.search(r"assigned the value (\d+), they are:  ([A-Z ]+)\n", solved).groups()
    assert len(answers.split()) == 5 and all(re.search(rf"VAR {name} = ", solved) for name in answers.split())
    assert value in solved.partition("Question:")[0]


def test_of_several_chains_the_first_value_is_asked_for(talker, haystack):
    (example,) = made(VariableTracking("two", chains=2, hops=3), talker, haystack, 5000)
    found, held = parsed_variables(talker.decode(example.context), talker.decode(example.question))
    assert found == set(example.references) and len(found) == 4 and len(held) == 8


def test_common_words_come_thirty_times_and_others_three(talker, haystack, by_name):
    (example,) = made(by_name["cwe"], talker, haystack, 7000)
    counts = parsed_counts(talker.decode(example.context))
    assert {counts[word] for word in example.references} == {30}
    assert {count for word, count in counts.items() if word not in example.references} == {3}
    (short,) = made(by_name["cwe"], talker, haystack, 3000)
    counts = parsed_counts(talker.decode(short.context))
    assert Counter(counts.values()).keys() == {6, 1} and {counts[word] for word in short.references} == {6}


def test_counts_follow_the_zeta_distribution():
    from scipy.special import zeta

    for amount in (LEAST, 100, 1234):
        assert zeta_counts(amount, 50) == (amount * np.arange(1.0, 51) ** -2.0 / zeta(2.0)).astype(int).tolist()
        assert zeta_counts(amount, 5)[3] > zeta_counts(amount, 5)[4]
    assert zeta_counts(LEAST - 1, 5)[3] == zeta_counts(LEAST - 1, 5)[4]


@pytest.mark.parametrize("name", ["qa_1", "qa_2"])
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 10**6), index=st.integers(0, 30))
def test_documents_are_numbered_and_one_of_them_answers(talker, haystack, by_name, name, seed, index):
    (example,) = made(by_name[name], talker, haystack, 4000, seed, count=index + 1, start=index)
    assert 0.98 * 4000 <= total(example) <= 4000
    context, question = talker.decode(example.context), talker.decode(example.question)
    parts = re.split(r"(?:^|\n\n)Document (\d+):\n", context.partition("given documents.\n\n")[2])
    assert [int(number) for number in parts[1::2]] == list(range(1, len(parts) // 2 + 1))
    subject = re.search(r"(?:does|person) (Town \w\w|\d+) ", question)[1]
    known = dict(re.findall(r"(?:Person )?(Town \w\w|\d+) (?:lies on river|wrote) (\S+|book \d+)\.", "\n".join(parts[2::2])))
    assert known[subject] == example.references[0]


def test_paragraphs_of_the_same_article_come_before_others(talker, haystack, by_name):
    (example,) = made(by_name["qa_1"], talker, haystack, 1200)
    context = talker.decode(example.context)
    towns = set(re.findall(r"Town (\w)\w lies", context))
    assert context.count("Document ") == 4
    asked = re.search(r"Town (\w)", talker.decode(example.question))[1]
    assert towns == {asked}  # the question's own paragraph and all three of its article


def test_every_answerable_question_is_asked_once_before_any_comes_again(talker, haystack, by_name):
    asked = [talker.decode(x.question) for x in made(by_name["qa_1"], talker, haystack, 1200, count=12)]
    assert len(set(asked)) == 12 and not any("Who?" in question for question in asked)


def test_a_missing_or_strange_file_is_named(talker, haystack, tmp_path):
    qa = {task.NAME: task for task in tasks(tmp_path)}["qa_1"]
    with pytest.raises(FileNotFoundError, match=r"no file .*dev-v2\.0\.json: put the official"):
        made(qa, talker, haystack, 2000)
    (tmp_path / "dev-v2.0.json").write_text('{"data": [{"title": "a"}]}')
    with pytest.raises(ValueError, match="layout of the official squad file"):
        made(qa, talker, haystack, 2000)
    (tmp_path / "hotpot_dev_distractor_v1.json").write_text("[]")
    with pytest.raises(ValueError, match="0 questions"):
        made({task.NAME: task for task in tasks(tmp_path)}["qa_2"], talker, haystack, 2000)


@pytest.mark.parametrize("name", NAMES)
def test_lengths_that_cannot_be_had_are_refused(talker, haystack, by_name, name):
    with pytest.raises(ValueError, match="too short for"):
        made(by_name[name], talker, haystack, 100)
    with pytest.raises(ValueError, match="none of unseen, seen"):
        made(by_name[name], talker, haystack, 4000, mode="maybe")


def test_too_few_words_are_refused(talker, haystack, by_name):
    with pytest.raises(ValueError, match="only 1.. different words: give a longer --text"):
        made(by_name["cwe"], talker, haystack, 20_000)
    with pytest.raises(ValueError, match="no words"):
        made(by_name["niah_single_2"], talker, encode_plain(talker, "  \n "), 4000)


def test_essays_begin_again_where_they_end(talker, by_name):
    (example,) = made(by_name["niah_single_2"], talker, encode_plain(talker, "One. Two. Three."), 3000)
    text = NEEDLE.sub("", talker.decode(example.context))
    assert text.count("Two.") > 50 and total(example) >= 2940


def test_depths_are_the_benchmarks():
    assert list(DEPTHS) == np.round(np.linspace(0, 100, num=40, endpoint=True)).astype(int).tolist()


def test_sentences_end_at_their_marks():
    text = 'It rose 3.5 percent. "Really?" he asked! (Yes.) It did... and so on'
    assert sentences(text) == ["It rose 3.5 percent.", '"Really?"', "he asked!", "(Yes.)", "It did...", "and so on"]
    assert " ".join(sentences(text)) == text and sentences("") == []


@given(st.lists(st.sampled_from("abc"), max_size=6), st.lists(st.integers(0, 6), max_size=4))
def test_needles_stand_before_their_places(parts, places):
    places = [min(place, len(parts)) for place in places]
    needles = [str(j) for j in range(len(places))]
    words = between(parts, needles, places).split()
    assert [word for word in words if word in "abc"] == parts
    for needle, place in zip(needles, places, strict=True):
        assert sum(word in "abc" for word in words[: words.index(needle)]) == place


@given(st.integers(0, 500), st.integers(0, 20))
def test_the_largest_that_fits_is_found(limit, least):
    assert largest(lambda n: n <= max(limit, least), least) == max(limit, least)


def test_a_list_has_every_word_its_number_of_times():
    import random

    counts = Counter(re.findall(r"w\d+", numbered(random.Random(0), [f"w{i}" for i in range(12)], LONG.common, LONG.other)))
    assert counts == {f"w{i}": 30 if i < 10 else 3 for i in range(12)}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_prompts_of_the_real_model_fit_their_length(by_name, name):
    import models
    from experiments.tasks import text

    lm = models.load("smollm2-135m")
    ids = encode_plain(lm, text.haystack().text)
    for length in (4096, 8192):
        (example,) = made(by_name[name], lm, ids, length)
        assert 0.98 * length <= total(example) <= length
        context, question = lm.decode(example.context), lm.decode(example.question)
        if name in GENERATED:
            assert right(name, context, question) == set(example.references)
        else:
            assert any(reference in context for reference in example.references)
