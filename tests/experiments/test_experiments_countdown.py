"""Countdown: the search line by line, and the checker of its solutions."""

import json

import pytest

from experiments.tasks.countdown import COUNTDOWN
from experiments.tasks.countdown_check import search_share, solves
from experiments.tasks.countdown_search import search

RIGHT = "40 + 19 = 59\n59 - 23 = 36\n36 - 7 = 29"


@pytest.mark.parametrize(
    ("numbers", "target", "tries", "equations"),
    [  # the published worked searches, and one of three numbers
        ([40, 19, 23, 7], 29, 9, ("40 + 19 = 59", "59 - 23 = 36", "36 - 7 = 29")),
        ([9, 16, 6, 18], 12, 153, ("16 * 9 = 144", "18 - 6 = 12", "144 / 12 = 12")),
        ([3, 5, 7, 2], 24, 109, ("5 * 3 = 15", "15 + 7 = 22", "22 + 2 = 24")),
    ],
)
def test_the_search_finds_what_the_benchmarks_does(numbers, target, tries, equations):
    found = search(numbers, target)
    assert (found.tries, found.equations) == (tries, equations)
    assert solves(numbers, target, "\n".join(equations))


def test_every_try_is_a_line():
    lines = search([40, 19, 23, 7], 29).demonstration.split("\n")
    assert lines[:5] == [
        "# Search Procedure",
        "Initial number set: [40, 19, 23, 7], target: 29. Options for choosing two numbers: [(40, 19), (40, 23), (40, 7), "
        "(19, 23), (19, 7), (23, 7)].",
        " |- Pick two numbers (40, 19) (numbers left: [23, 7]). Try possible operations.",
        "  |- Try 40 + 19 = 59. Add 59 to the number set. Current number set: [59, 23, 7], target: 29. Options for choosing two "
        "numbers: [(59, 23), (59, 7), (23, 7)].",
        "   |- Pick two numbers (59, 23) (numbers left: [7]). Try possible operations.",
    ]
    assert lines[6] == "     |- Try 82 + 7 = 89. Evaluate 89 != 29, drop this branch."
    assert lines[8] == "     |- Try 82 * 7 = 574. Evaluate 574 != 29, drop this branch."
    assert lines[9] == "     |- Try 82 / 7 = 11.7. 11.7 is a decimal, drop this branch."
    assert lines[11] == "     |- Try 36 + 7 = 43. Evaluate 43 != 29, drop this branch."
    assert lines[12] == "     |- Try 36 - 7 = 29. Evaluate 29 == 29, target found!"
    assert lines[13:] == [
        "", "Now we have found the target, let's trace back the solution:", "Final step: 36 - 7 = 29",
        "The step before: 59 - 23 = 36", "The first step: 40 + 19 = 59", "", "Output the solution in the required format:",
        "<Solution>", *RIGHT.split("\n"), "</Solution>", "",
    ]  # fmt: skip


def test_large_results_and_divisions_by_zero_are_dropped():
    log = search([5, 5, 400, 3], 404).log
    assert "Try 400 / 0 (invalid operation). drop this branch." in log
    assert "Try 400 * 10 = 4000. 4000 exceeds the maximum intermediate result, drop this branch." in log


def test_what_has_no_solution_has_none():
    assert search([1, 1, 1, 1], 1999) is None
    with pytest.raises(ValueError, match="three numbers at least"):
        search([1, 2], 3)


@pytest.mark.parametrize(
    ("solution", "right"),
    [
        (RIGHT, True),
        (RIGHT.replace(" ", ""), True),
        (RIGHT + "\n", False),  # four lines
        (RIGHT.replace("59", "60"), False),  # wrong sums
        ("40 + 19 = 59\n59 - 23 = 36\n36 + 7 = 43", False),  # another target
        ("19 + 40 = 59\n59 - 23 = 36\n36 - 7 = 29", True),  # either operand first
        ("40 - 7 = 33\n33 - 7 = 26\n26 + 3 = 29", False),  # 7 twice
        ("40 / 0 = 1\n1 + 1 = 2\n2 + 2 = 4", False),
        ("40 + 19 + 23 = 82\n82 - 7 = 75\n75 - 1 = 74", False),
        ("__import__('os') = 1\n1 + 1 = 2\n2 + 2 = 4", False),
        ("", False),
    ],
)
def test_a_solution_is_checked_by_its_integers(solution, right):
    assert solves([40, 19, 23, 7], 29, solution) is right


def test_a_search_gets_its_share():
    """11 lines after the initial state: index of the first that differs over their number, as published."""
    right = search([40, 19, 23, 7], 29).log
    lines = right.split("\n")
    assert len(lines) == 12
    changed = lambda at, line: "\n".join([*lines[:at], line, *lines[at + 1 :]])  # noqa: E731
    assert search_share(right, right) == pytest.approx(10 / 11)  # never 1
    assert search_share(changed(1, "x"), right) == 0
    assert search_share(changed(5, "x"), right) == pytest.approx(4 / 11)
    assert search_share(lines[0], right) == pytest.approx(-1 / 11)
    assert search_share("x", right) == 0
    loose = lines[5].split("=")[0] + "= 0, drop this branch."  # what follows "=" is free where the branch is dropped alike
    assert search_share(changed(5, loose), right) == pytest.approx(10 / 11)


def test_instances_are_drawn_from_the_seed_and_solvable(reader):
    make = lambda seed, length=4000, mode="unseen": list(COUNTDOWN.examples(reader, length, 3, seed, haystack=(), mode=mode))  # noqa: E731
    made = make(0)
    assert made == make(0) and made[0].references != make(1)[0].references
    for example in made:
        numbers, target = json.loads(example.references[1])
        assert 0 < example.meta["tries"] <= 16 and search(numbers, target).tries == example.meta["tries"]
        assert reader.decode(example.question) == f"# Problem\nNumbers: {numbers}\nTarget: {target}\n"
        answer = example.references[0].removeprefix("# Search Procedure\n")
        assert COUNTDOWN.grade(answer, example.references) == 1 and COUNTDOWN.grade(answer[:80], example.references) == 0
        figures = {"partial_accuracy": 1, "extraction_rate": 1, "search_tries": example.meta["tries"]}
        assert COUNTDOWN.also(answer, example.references) == figures
    assert len(make(0, 40_000)[0].context) > 3 * len(made[0].context) and len(made[0].context) <= 4000
    with pytest.raises(ValueError, match="too short for countdown"):
        make(0, 500)
