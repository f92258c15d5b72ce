"""The order of methods on two halves of the prompts, and what rows cost, on made-up rows."""

import numpy as np
import pytest

from experiments.leaderboard.halves import halves
from experiments.leaderboard.spent import spent
from experiments.result_pages.other_prompts import cost, order_table, sections

CELL = dict(model="m", dtype="float32", length=64, task="needle", mode="unseen")


def rows_of(scores, budget=0.5, **changes):
    """A row for each method and prompt of scores [methods, prompts]."""
    cell = CELL | changes | {"budget": budget}
    return [cell | dict(policy=f"p{m}", prompt=i, score=float(x)) for m, own in enumerate(scores) for i, x in enumerate(own)]


def test_the_same_order_on_both_halves_is_one_and_the_other_way_round_is_minus_one():
    rising = np.arange(6)[:, None] * np.ones(8)
    assert halves(rows_of(rising))[0].rho == pytest.approx(1)
    turned = np.where(np.arange(8) % 2, -rising, rising)
    assert halves(rows_of(turned))[0].rho == pytest.approx(-1)


def test_ties_take_their_mean_rank():
    """Even prompts rank 0 0 0 1 2, odd ones 0 0 0 2 1: ranks 2 2 2 4 5 and 2 2 2 5 4."""
    scores = np.array([[0, 0], [0, 0], [0, 0], [1, 2], [2, 1]]).repeat(4, 0).reshape(5, 4, 2).reshape(5, 8)
    a, b = np.array([2, 2, 2, 4, 5.0]), np.array([2, 2, 2, 5, 4.0])
    (found,) = halves(rows_of(scores))
    assert found.rho == pytest.approx(np.corrcoef(a, b)[0, 1]) and (found.methods, found.prompts) == (5, 8)


def test_one_score_for_all_has_no_order():
    assert halves(rows_of(np.zeros((6, 8))))[0].rho is None


def test_few_methods_and_few_prompts_say_nothing():
    assert halves(rows_of(np.ones((4, 50)))) == [] and halves(rows_of(np.ones((9, 7)))) == []
    assert halves(rows_of(np.ones((9, 9)), budget=256)) == []


def test_methods_on_other_prompts_than_most_are_left_out():
    late = [row | {"prompt": row["prompt"] + 4, "policy": "late"} for row in rows_of(np.ones((1, 8)))]
    (found,) = halves(rows_of(np.arange(6)[:, None] * np.ones(8)) + late)
    assert found.methods == 6


def test_means_are_over_the_budgets_with_most_prompts():
    """At either budget the halves disagree, and their mean is one order; a third budget has fewer prompts."""
    rising, odd = np.arange(6)[:, None] * np.ones(10), np.arange(10) % 2
    several = rows_of(np.where(odd, 3 * rising, -rising)) + rows_of(np.where(odd, -rising, 3 * rising), budget=0.25)
    found = {one.budget: one.rho for one in halves(several + rows_of(-rising[:, :8], budget=0.1))}
    assert found == {None: pytest.approx(1), 0.5: pytest.approx(-1), 0.25: pytest.approx(-1), 0.1: pytest.approx(1)}


def test_nats_are_ranked_too():
    rows = [{**row, "nll": -row.pop("score"), "mode": "-"} for row in rows_of(np.arange(6)[:, None] * np.ones(8), task="ppl")]
    (found,) = halves(rows)
    assert found.task == "ppl" and found.rho == pytest.approx(1)


def test_the_table_has_a_line_for_a_task():
    rows = rows_of(np.arange(6)[:, None] * np.ones(8)) + rows_of(np.arange(6)[:, None] * np.ones(8), budget=1.0)
    heads, _, line = order_table(halves(rows))
    assert heads.split(" | ")[2:5] == ["means", "50%", "own size"]
    assert [cell.strip() for cell in line.strip("| ").split("|")] == ["needle unseen", "64", "-", "1.00", "1.00", "6", "8"]


def test_cost_counts_a_shared_prompt_once():
    first = CELL | dict(prompt=0, seconds_prefill=3600.0, seconds_compress=1800.0, seconds_per_token=360.0, answer_tokens=2)
    text = first | {"task": "ppl", "mode": "-"}
    del text["answer_tokens"]
    assert spent([first, first, text]) == pytest.approx((2.0, 1.5, 0.4))
    assert "3.9 hours of two cores: 2.0 of reading prompts, 1.5 of compressing them and 0.4 of decoding" in cost(
        spent([first, first, text])
    )


def test_cost_counts_an_hour_of_one_core_as_half_an_hour_of_two():
    row = CELL | dict(prompt=0, seconds_prefill=3600.0, seconds_compress=1800.0, seconds_per_token=360.0, answer_tokens=10)
    of_two, of_one = (row | {"machine": f"some processor, {n} cores, 24 GiB, jax on cpu"} for n in (2, 1))
    assert spent([of_two]) == spent([row]) == pytest.approx((1.0, 0.5, 1.0))
    assert spent([of_one]) == pytest.approx((0.5, 0.25, 0.5))


def test_rows_without_an_order_have_their_cost():
    first = CELL | dict(policy="p", budget=0.5, score=1.0, prompt=0, seconds_prefill=1.0, seconds_compress=1.0)
    assert sections([first])[0] == "## Cost"
    assert sections([{name: x for name, x in first.items() if not name.startswith("seconds")}]) == []
