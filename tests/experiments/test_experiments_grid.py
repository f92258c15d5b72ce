"""The grid that is timed against kvpress, cut small: a cell of it answers what it answers alone, token for token."""

from dataclasses import replace

import numpy as np
import pytest

import kvjax
from experiments.bench.beside import PRESSES, once
from experiments.commands.bench_output import model_and_text
from experiments.commands.tasks import parse_tasks
from experiments.measure import measure
from experiments.plan_words import grid

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def real():
    return model_and_text("smollm2-135m", "float32", None, None)


@pytest.mark.parametrize(("name", "budgets"), [("needle", "0.5,0.1"), ("keyvalue", "0.25")])
def test_a_cell_answers_as_it_does_alone(name, budgets, real, monkeypatch):
    lm, ids = real
    decode, seen = kvjax.decode, []
    monkeypatch.setattr(kvjax, "decode", lambda *given, **how: seen.append(decode(*given, **how)) or seen[-1])
    ((task, mode),) = parse_tasks(name, "unseen")
    cells = [replace(cell, policy=once(cell.policy)) for cell in grid(",".join(PRESSES), budgets)]
    example = next(iter(task.examples(lm, 512, 1, 0, haystack=ids, mode=mode)))
    needs = [cell.policy for cell in cells]
    together = {row["policy_repr"]: row for row, _ in measure(lm, task, [example], cells, needs=needs)}
    assert len(together) == len(cells) and {row["rows"] for row in together.values()} == {len(cells)}
    batch = seen.pop()
    for row, cell in enumerate(cells):  # they decode alike, so the batch has them in their order
        ((alone, _),) = measure(lm, task, [example], [cell], needs=needs)
        assert (alone["answer"], alone["score"]) == tuple(together[alone["policy_repr"]][x] for x in ("answer", "score")), cell
        np.testing.assert_array_equal(batch.tokens[row, : batch.lengths[row]], seen.pop().tokens[0])
    assert len({row["answer"] for row in together.values()}) > 2
