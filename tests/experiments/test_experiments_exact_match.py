"""GSM8K and MATH: graded as their authors grade, read from files in the official layout."""

import json

import pytest

from experiments.tasks.dataset_files import datasets_folder
from experiments.tasks.datasets.source import Hub, Local, LocalOrHub, Parts
from experiments.tasks.gsm8k import Gsm8k, final
from experiments.tasks.gsm8k import split as gsm8k_split
from experiments.tasks.latex import equivalent
from experiments.tasks.math_exact import MathExact, last_boxed, last_unbraced
from experiments.tasks.math_exact import split as math_split

WORDS = {"question": "Tom has {} sheep and buys {} more. How many?", "answer": "He has {}+{} = <<{}+{}={}>>{} sheep.\n#### {}"}


def write(folder, split, records):
    folder.mkdir(exist_ok=True)
    (folder / f"{split}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return Local(folder / f"{split}.jsonl")


def sums(first, count):
    """Word problems with their calculator notes, as GSM8K writes them."""
    found = []
    for a in range(first, first + count):
        b, c = a + 1, 2 * a + 1
        answer = WORDS["answer"].format(a, b, a, b, c, c, f"{c:,}")
        found.append({"question": WORDS["question"].format(a, b), "answer": answer})
    return found


def boxes(first, count):
    fractions = [f"\\frac{{{n}}}{{7}}" for n in range(first, first + count)]
    solutions = [f"First \\boxed{{0}}, then $\\boxed{{{fraction}}}$. Ünïcode." for fraction in fractions]
    return [{"problem": f"What is ${f}$?", "level": "Level 1", "solution": s} for f, s in zip(fractions, solutions, strict=True)]


@pytest.fixture
def gsm8k(tmp_path):
    return Gsm8k(write(tmp_path / "g", "test", sums(5000, 6)), write(tmp_path / "g", "train", sums(100, 12)))


@pytest.fixture
def math(tmp_path):
    return MathExact(write(tmp_path / "m", "test", boxes(500, 6)), write(tmp_path / "m", "train", boxes(100, 12)))


@pytest.fixture(params=["gsm8k", "math"])
def task(request):
    return request.getfixturevalue(request.param)


def made(task, talker, length=3000, count=3, seed=0, mode="unseen", **how):
    return list(task.examples(talker, length, count, seed, haystack=(), mode=mode, **how))


@pytest.mark.parametrize(("answer", "references", "score"), [
    ("", ("72",), 0),
    ("72", ("72",), 0),  # no marker, no answer
    (" 48/2=24\n#### 24", ("24",), 1),
    ("#### 1,234", ("1234",), 1),
    ("#### 72.", ("72",), 1),  # the harness drops a final period
    ("#### 72.50", ("72.5",), 0),  # compared as strings
    ("#### -3", ("-3",), 1),
    ("####72", ("72",), 0),  # the marker ends in a space
    ("#### $72", ("72",), 0),  # the pattern wants a digit first
    ("#### 10\n\nQuestion: more?\nAnswer: #### 72", ("72",), 0),
    ("\n\nQuestion: another? #### 72", ("72",), 0),
    ("#### 1 #### 2", ("1",), 1),  # the first
    ("#### ７２", ("72",), 0),  # full-width digits
    ("Ünïcode → #### 5 яблок", ("5",), 1),
    ("#### 6", ("5", "6"), 1),
])  # fmt: skip
def test_gsm8k_answers_are_the_number_after_the_marker(gsm8k, answer, references, score):
    assert gsm8k.grade(answer, references) == score


@pytest.mark.parametrize(("answer", "references", "score"), [
    ("", ("1",), 0),
    ("the answer is 1", ("1",), 0),
    (r"\boxed{1}", ("1",), 1),
    (r"\boxed{2} no, \boxed{1}", ("1",), 1),
    (r"\boxed{1} no, \boxed{2}", ("1",), 0),
    (r"\boxed{1", ("1",), 0),
    (r"\boxed 1", ("1",), 0),
    (r"\fbox{1}", ("1",), 0),  # the authors' remove_boxed knows \boxed{ only
    (r"\boxed{\frac{1}{\sqrt{2}}}", (r"\frac1{\sqrt2}",), 1),
    (r"\boxed{\dfrac{3}{4}}", ("3/4",), 1),
    (r"\boxed{.5}", (r"\frac12",), 1),
    (r"\boxed{50\%}", ("50",), 1),
    (r"\boxed{x = 5}", ("5",), 1),
    (r"\boxed{length = 5}", ("5",), 0),
    (r"\boxed{10\text{ cm}}", ("10",), 1),
    (r"\boxed{90^\circ}", ("90",), 1),
    (r"\boxed{\left(1, 2\right)}", ("(1,2)",), 1),
    (r"\boxed{1,2}", ("2,1",), 0),
    (r"\boxed{π}", (r"\pi", "π"), 1),
    (r"\boxed{Ünï}", ("ünï",), 0),
    (r"\boxed{1} Problem: \boxed{2}", ("1",), 1),
    (r"\boxed{\text{ a}\text{ b}}", (r"\text{ a}\text{ b}",), 1),  # cannot be normalised: compared as it is
    (r"\boxed{\frac}", (r"\frac ",), 0),
])  # fmt: skip
def test_math_answers_are_the_last_box_after_normalising(math, answer, references, score):
    assert math.grade(answer, references) == score


@pytest.mark.parametrize(("one", "other", "same"), [  # the tests that the authors publish beside the normalisation
    (r"\tfrac{1}{2} + \frac1{72}", r"\\frac{1}{2} + 2/3", False),
    ("10, 4, -2", "4, 10, -2", False),
    ("\\tfrac{1}{2} +\\! \\frac1{72}", r"\\dfrac{1}{2} +\frac{1}{72}", True),
    (r"10\text{ units}", "10 ", True),
    (r"10\text{ units}", "100 ", False),
    ("10", r"\$10", True),
    (r"\left(x-2\right)\left(x+2\right)", "(x-2)(x+2)", True),
    ("0.1", ".1", True),
    (r"10\%", "10", True),
    (r"10\sqrt{3} + \sqrt4", r"10\sqrt3 + \sqrt{4}", True),
    (r"\frac34i", r"\frac{3}{4}i", True),
    (r"\tfrac83", r"\frac{8}{3}", True),
    ("5x - 7y + 11z + 4 = 0", "x + y - z + 2 = 0", False),
])  # fmt: skip
def test_the_normalisation_agrees_with_its_authors_tests(one, other, same):
    assert equivalent(one, other) is same and equivalent(other, one) is same


def test_boxes_are_balanced():
    assert last_boxed(r"\boxed{a{b}c}d}") == "a{b}c" and last_boxed(r"\boxed{}") == "" and last_boxed("{1}") is None


def test_a_box_without_a_brace_counts_in_a_solution_alone(tmp_path, talker):
    """As two rows of the published train split end; a model's answer needs the braces."""
    bare = [{"problem": "1 + 1", "solution": r"So $\boxed 2$."}, {"problem": "4 + 5", "solution": r"That is $\boxed 9"}]
    task = MathExact(write(tmp_path, "test", boxes(500, 2)), write(tmp_path, "train", bare), shots=2)
    (example,) = made(task, talker, count=1)
    assert talker.decode(example.context).count("Problem:\n") == 2 == example.meta["shots"]
    assert [task.answer(row) for row in bare] == ["2", "9"] and task.grade(r"\boxed 2", ("2",)) == 0
    texts = r"\boxed{1}", r"\boxed12. So", r"\boxed 1, \boxed{2", "2", r"\boxed $", r"\boxed{3} \boxed x"
    assert [last_unbraced(text) for text in texts] == [None, "12", None, None, None, "x"]
    assert task.answer({"solution": r"\boxed{}"}) == ""


def test_prompts_are_worked_examples_and_a_problem(gsm8k, math, talker):
    (example, *_) = made(gsm8k, talker)
    context, question = talker.decode(example.context), talker.decode(example.question)
    assert context.count("Question: ") == context.count("\nAnswer: ") == context.count("#### ") == 5 == example.meta["shots"]
    assert "<<" not in context and context.endswith("\n\n")
    a, b = (int(word) for word in question.split() if word.isdigit())
    assert example.references == (str(a + b),) and talker.decode(example.prefix) == "\nAnswer:"
    (example, *_) = made(math, talker)
    context, question = talker.decode(example.context), talker.decode(example.question)
    assert context.count("Problem:\n") == context.count("\n\nSolution:\n") == 4 and "Ünïcode" in context
    assert example.references[0] in question and talker.decode(example.prefix) == "\n\nSolution:"


def test_the_reference_is_right_by_the_tasks_own_grade(task, talker):
    for record in task.problems.rows:
        assert task.grade(task.solve(record), (task.answer(record),)) == 1


def test_prompts_repeat_differ_by_index_and_ask_everything_once(task, talker):
    found = made(task, talker, count=6)
    assert made(task, talker, count=6, start=4) == found[4:] and len({x.question for x in found}) == 6
    assert len({x.context for x in found}) > 1 and made(task, talker, count=9) == found  # there are six problems
    assert [x.question for x in made(task, talker, count=6, length=800)] == [x.question for x in found]
    other = made(task, talker, count=6, seed=1)
    assert [x.question for x in other] != [x.question for x in found]
    assert not {x.context for x in other} & {x.context for x in found}
    seen = made(task, talker, count=6, mode="seen")
    assert [x.compressed + x.fed for x in seen] == [x.compressed + x.fed for x in found]


def test_the_context_holds_as_many_examples_as_fit(task, talker):
    whole, less, none = (made(task, talker, length, 1, mode="seen")[0] for length in (3000, 300, 20))
    assert whole.meta["shots"] > less.meta["shots"] > none.meta["shots"] == 0 and len(less.context) <= 300
    assert talker.decode(whole.context).startswith(talker.decode(less.context))


def test_no_train_split_is_needed_without_examples(tmp_path, talker):
    task = Gsm8k(write(tmp_path, "test", sums(1, 2)), Local(tmp_path / "train.jsonl"), shots=0)
    with pytest.raises(ValueError, match="nothing comes before the question"):
        made(task, talker, count=1)
    (example,) = made(task, talker, count=1, mode="seen")
    assert example.context == () and talker.decode(example.question).startswith("Question: Tom")


def alone(kind, folder, rows):
    """A task whose file of problems is all there is."""
    return kind(write(folder, "test", rows), Local(folder / "train.jsonl"))


def test_files_that_do_not_fit_are_named(tmp_path, talker):
    with pytest.raises(FileNotFoundError, match=r"no file .*train\.jsonl: put the benchmark's train\.jsonl there"):
        made(alone(Gsm8k, tmp_path / "a", sums(1, 2)), talker)
    with pytest.raises(ValueError, match=r"test.jsonl, line 1: the row has no field 'answer', only question, reply"):
        made(alone(Gsm8k, tmp_path / "b", [{"question": "1", "reply": "1"}]), talker)
    with pytest.raises(ValueError, match="no '#### number'"):
        made(alone(Gsm8k, tmp_path / "c", [{"question": "1", "answer": "1"}]), talker)
    with pytest.raises(ValueError, match="nothing is boxed"):
        made(alone(MathExact, tmp_path / "d", [{"problem": "1", "solution": "1"}]), talker)
    with pytest.raises(ValueError, match="expected a JSON object, got list"):
        made(alone(Gsm8k, tmp_path / "e", [[1]]), talker)
    torn = alone(Gsm8k, tmp_path / "f", sums(1, 1))
    torn.test.file.write_text(torn.test.file.read_text() + "{")
    with pytest.raises(ValueError, match="line 2: not JSON"):
        made(torn, talker)
    with pytest.raises(ValueError, match="test.jsonl holds no rows"):
        made(alone(Gsm8k, tmp_path / "g", []), talker)


def test_an_unknown_mode_is_refused(task, talker):
    with pytest.raises(ValueError, match="none of unseen, seen"):
        made(task, talker, mode="-")


def test_files_come_before_the_hub_and_the_package_is_named(tmp_path, talker, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)  # as if it were not installed
    monkeypatch.setenv("KVJAX_CACHE", str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="pip install datasets"):
        Hub("some/name").paths()
    for task in (Gsm8k(gsm8k_split("test"), gsm8k_split("train")), MathExact(math_split("test"), math_split("train"))):
        with pytest.raises(FileNotFoundError, match=r"no file .*test\.jsonl: .* pip install datasets"):
            made(task, talker)
    (tmp_path / "datasets").mkdir()
    for split in ("train", "test"):
        write(tmp_path / "datasets" / "gsm8k", split, sums(1, 3))
    assert len(made(Gsm8k(gsm8k_split("test"), gsm8k_split("train")), talker)) == 3


def test_the_hubs_subjects_follow_one_another(tmp_path, talker):
    """Seven tables on this machine instead of the hub."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    files = [tmp_path / f"{i}.parquet" for i in range(7)]
    for i, file in enumerate(files):
        parquet.write_table(pyarrow.Table.from_pylist(boxes(100 * i + 1, 2)), file)
    source = LocalOrHub(Local(tmp_path / "test.jsonl"), Parts(tuple(map(Local, files))))
    task = MathExact(source, source, shots=1)
    assert [task.answer(row) for row in task.problems.rows][:3] == [r"\frac{1}{7}", r"\frac{2}{7}", r"\frac{101}{7}"]
    assert len(made(task, talker, count=20)) == 14


def test_a_prompt_names_the_files_it_was_made_of(gsm8k, talker, tmp_path):
    (example,) = made(gsm8k, talker, count=1)
    assert example.meta["data"] == f"{gsm8k.problems.digest}+{gsm8k.worked.digest}"
    assert made(Gsm8k(gsm8k.test, gsm8k.train, shots=0), talker, count=1, mode="seen")[0].meta["data"] == gsm8k.problems.digest


def test_the_folder_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("KVJAX_CACHE", str(tmp_path))
    assert datasets_folder() == tmp_path / "datasets"


def test_a_final_number_loses_its_commas():
    assert [final(text) for text in ("#### 1,000,000", "x", "#### ", "#### .5")] == ["1000000", None, None, ".5"]


@pytest.mark.slow
def test_prompts_of_the_real_model_stand_in_its_chat_template(gsm8k):
    import models

    lm = models.load("smollm2-135m")
    (example,) = made(gsm8k, lm, count=1, length=4096)
    assert lm.decode(example.context).startswith("<|im_start|>") and example.meta["shots"] == 5
    assert lm.decode(example.prefix) == "<|im_end|>\n<|im_start|>assistant\nAnswer:"
