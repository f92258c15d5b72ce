"""Each rule of a verdict on made-up values."""

import math

import numpy as np
import pytest

from experiments.report.words import difference, estimate
from experiments.stats import Estimate, average, share_difference
from experiments.stretches import units
from experiments.verdicts import ALIKE, FEWEST, MATTERS, verdict


def nats(mean: float, spread: float, n: int) -> tuple[list[float], list[float]]:
    """n pairs whose differences have exactly this mean and standard deviation."""
    z = np.linspace(-1, 1, n)
    z = z / z.std(ddof=1)
    base = np.linspace(-3.5, -3.0, n)
    return list(base + mean + spread * z), list(base)


def shares(both: int, first: int, second: int, neither: int) -> tuple[list[float], list[float]]:
    """Pairs of right and wrong by how many prompts each side has right."""
    pairs = [(1.0, 1.0)] * both + [(1.0, 0.0)] * first + [(0.0, 1.0)] * second + [(0.0, 0.0)] * neither
    return [a for a, _ in pairs], [b for _, b in pairs]


def test_an_interval_without_zero_holds_or_is_reversed():
    better, worse = nats(0.05, 0.05, 20)
    found = verdict(better, worse, "nats")
    assert (found.word, found.said, found.needed) == ("holds", "holds", None)
    assert found.difference.mean == pytest.approx(0.05) and found.difference.low > 0
    assert verdict(worse, better, "nats").word == "reversed"
    assert verdict(*shares(5, 15, 1, 5), "share").word == "holds" and verdict(*shares(5, 1, 15, 5), "share").word == "reversed"


def test_an_interval_with_zero_is_unresolved_and_says_how_many_prompts_would_settle_it():
    found = verdict(*nats(0.05, 0.2, 20), "nats")
    assert found.word == "unresolved" and found.said == f"unresolved (n = {found.needed})"
    assert found.needed == pytest.approx((1.96 + 0.8416) ** 2 * 0.2**2 / 0.05**2, abs=4)
    more = average(np.subtract(*nats(0.05, 0.2, found.needed)).tolist())
    assert more.low > 0
    tied = verdict(*nats(0.0, 0.2, 20), "nats")
    assert tied.needed == pytest.approx((1.96 * 0.2 / MATTERS["nats"]) ** 2, rel=0.01)


@pytest.mark.parametrize("times", [1, 3])
def test_the_prompts_that_are_asked_for_settle_scores(times):
    pairs = shares(6 * times, 4 * times, 2 * times, 3 * times)
    found = verdict(*pairs, "share")
    assert found.word == "unresolved"
    scale = math.ceil(found.needed / len(pairs[0]))
    again = verdict(*(side * scale for side in pairs), "share")
    assert again.word == "holds" and found.needed > len(pairs[0])


def test_a_difference_that_is_bounded_below_what_matters():
    assert verdict(*nats(0.0005, 0.004, 30), "nats").word == "bounded"
    assert verdict(*nats(0.0005, 0.04, 30), "nats").word == "unresolved"
    assert verdict(*shares(900, 3, 3, 94), "share").word == "bounded"
    assert verdict(*shares(9, 0, 0, 1), "share").word == "unresolved"


def test_what_is_surely_there_and_does_not_matter_is_small():
    found = verdict(*nats(0.002, 0.002, 30), "nats")
    assert (found.word, found.said) == ("holds", "holds (small)")


def test_fewer_than_six_prompts_say_nothing():
    for n in range(2, FEWEST):
        found = verdict(*nats(5.0, 0.001, n), "nats")
        assert found.word == "unresolved" and found.needed >= FEWEST
    assert verdict(*nats(5.0, 0.001, FEWEST), "nats").word == "holds"
    assert verdict([1.0] * 5, [0.0] * 5, "share").word == "unresolved"


def test_a_difference_without_spread_is_no_certainty():
    two = verdict([-3.0, -3.1], [-3.5, -3.6], "nats")
    assert two.word == "unresolved" and two.needed == FEWEST and two.difference.high == math.inf
    alike = verdict([-3.0] * 10, [-3.0] * 10, "nats")
    assert alike.word == "unresolved" and alike.needed == ALIKE
    assert verdict([-3.0] * ALIKE, [-3.0] * ALIKE, "nats").word == "bounded"
    assert verdict([-3.0] * FEWEST, [-3.5] * FEWEST, "nats").word == "holds"
    six = verdict([1.0] * 6, [0.0] * 6, "share")
    assert six.word == "holds" and six.difference.low < 0.7, "Newcombe's interval has a width though nothing varies"


def test_one_prompt_has_no_interval():
    found = verdict([-3.0], [-3.5], "nats")
    assert found.word == "unresolved" and found.needed == FEWEST


@pytest.mark.parametrize("value, why", [(0.0, "floor"), (1.0, "ceiling")])
def test_cells_that_all_fail_or_all_succeed_tell_nothing(value, why):
    found = verdict([value] * 50, [value] * 50, "share")
    assert (found.word, found.why, found.needed, found.said) == ("unresolved", why, None, f"unresolved ({why})")


def test_partial_credit_is_neither_floor_nor_ceiling():
    assert verdict([0.5] * 50, [0.5] * 50, "share").why == ""


def test_scores_have_newcombes_interval():
    better, worse = shares(3, 5, 2, 4)
    assert verdict(better, worse, "share").difference == share_difference(better, worse)


@pytest.mark.parametrize("words", [([], [], "nats"), ([1.0], [1.0, 0.0], "share"), ([1.0], [1.0], "points")])
def test_what_cannot_be_compared_is_refused(words):
    with pytest.raises(ValueError, match="expected values of the same prompts"):
        verdict(*words)


def test_few_prompts_are_never_bounded_and_small_is_said():
    """Two equal scores lie within 3 points of each other by their intervals only at many prompts; nats of tiny spread from 6 on."""
    assert verdict([1.001, 1.002], [1.0, 1.001], "nats").word == "unresolved"
    few = [0.0001, -0.0001, 0.0002, -0.0002, 0.0]
    assert verdict(few, [0.0] * 5, "nats").word == "unresolved"
    assert verdict([*few, 0.0001], [0.0] * 6, "nats").word == "bounded"
    small = verdict([1.0 + 0.001 * x for x in (1, 2, 1, 2, 1, 2)], [1.0] * 6, "nats")
    assert small.said == "holds (small)"
    alike = [verdict([1.0 + x] * 6, [1.0] * 6, "nats") for x in (MATTERS["nats"] / 2, -MATTERS["nats"] / 2, 2 * MATTERS["nats"])]
    assert [x.said for x in alike] == ["holds (small)", "reversed (small)", "holds"]


def test_values_of_one_unit_count_once():
    """Each value twice over in one unit: the mean stays, the interval is that of the units alone."""
    once, twice = average([1.0, 2.0, 4.0]), average([1.0, 1.0, 2.0, 2.0, 4.0, 4.0], [0, 0, 1, 1, 2, 2])
    assert (twice.mean, twice.low, twice.high) == pytest.approx((once.mean, once.low, once.high)) and twice.count == 6
    alone = average([1.0, 2.0, 4.0], [5, 6, 7])
    assert (alone.mean, alone.low, alone.high) == pytest.approx((once.mean, once.low, once.high))
    assert math.isnan(average([1.0, 2.0], [0, 0]).high), "of one unit no interval is known"


def test_stretches_share_tokens_directly_or_through_others():
    assert units([0, 1000, 200, 400]) == [0, 1, 0, 0]
    assert units([0, 256, 511]) == [0, 1, 1]
    assert len(set(units([None, None, 5, 5]))) == 3


def test_numbers_show_on_which_side_of_zero_they_lie():
    assert difference(Estimate(0.04, 0.004, 0.09, 120), "share") == "+4.0 [+0.4, +9.0]"
    assert difference(Estimate(0.04, 0.0, 0.09, 120), "share") == "+4 [+0, +9]"
    assert difference(Estimate(-0.0029, -0.0055, -0.0003, 9), "nats") == "-0.0029 ± 0.0026"
    assert estimate(Estimate(0.02, 0.004, 0.105, 50), "share") == "2 [0, 10]"
