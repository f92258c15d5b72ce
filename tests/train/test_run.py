"""Runs: accumulated gradients, checkpoints and logs, the same bits after any interruption, a stop where numbers end."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kvjax.train import Example, Examples, Frozen, Graded, mean_grade, stacked, train
from kvjax.train.learner import Learner, Moment
from kvjax.train.learners import TrimKV
from kvjax.train.step import begin, take_step
from tests.conftest import ids_of
from tests.train.conftest import DUO, TRIM, Cut, cut_at, same, texts


@dataclass(frozen=True)
class Noisy(TrimKV):
    """A loss that draws, to see that draws are those of their step; NaN at a step where it is asked for."""

    nan_at: int = 10**6

    def loss(self, weights, frozen, batch, moment):
        graded = super().loss(weights, frozen, batch, moment)
        drawn = jax.random.normal(moment.key, weights["down"]["bias"].shape)
        loss = graded.loss + (drawn * weights["down"]["bias"]).mean()
        return Graded(jnp.where(moment.step == self.nan_at, jnp.nan, loss), graded.kept, graded.terms)


NOISY = Noisy(budget=8, hidden=16, bias=4.0, rate=2e-2)


@pytest.fixture(scope="module")
def whole(lm, source, tmp_path_factory):
    """A run that nothing disturbs."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return train(lm, NOISY, source, steps=7, folder=folder, every=3), folder


NOW = Moment(step=jnp.int32(0), key=jax.random.key(0), steps=10)


@pytest.mark.parametrize("cuts", [[0], [2], [3], [5], [1, 4], [3, 3, 6]])
def test_a_run_that_was_cut_ends_with_the_same_bits(lm, source, whole, tmp_path, cuts):
    how = dict(steps=7, folder=tmp_path / "run", every=3)
    for number, step in enumerate(cuts):
        with pytest.raises(Cut):
            train(lm, NOISY, source, resume=number > 0, report=cut_at(step), **how)
    again = train(lm, NOISY, source, resume=True, **how)
    assert same(again.weights, whole[0].weights) and again.log == whole[0].log
    assert (tmp_path / "run/log.jsonl").read_bytes() == (whole[1] / "log.jsonl").read_bytes()


def test_a_folder_holds_the_two_newest_checkpoints_and_nothing_half(whole):
    assert sorted(path.name for path in whole[1].iterdir()) == ["log.jsonl", "run.json", "step-0000006", "step-0000007"]


def test_a_run_that_is_done_is_only_read(lm, source, whole):
    again = train(lm, NOISY, source, steps=7, folder=whole[1], resume=True, report=cut_at(0))
    assert same(again.weights, whole[0].weights) and again.log == whole[0].log


def test_another_run_is_not_taken_up(lm, source, whole):
    how = dict(steps=7, folder=whole[1])
    with pytest.raises(FileExistsError, match="holds a run already"):
        train(lm, NOISY, source, **how)
    with pytest.raises(ValueError, match="settings: .*'budget': 8.*'budget': 9"):
        train(lm, Noisy(budget=9, hidden=16, bias=4.0, rate=2e-2), source, resume=True, **how)
    with pytest.raises(ValueError, match="data: .*; steps: 7 there, 8 asked; seed: 0 there, 1 asked"):
        train(lm, NOISY, Examples(texts(13), rows=2, parts=2), steps=8, seed=1, folder=whole[1], resume=True)


def test_what_is_no_run_is_left_alone(lm, source, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match="holds no run"):
        train(lm, NOISY, source, steps=1, folder=tmp_path, resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_half_a_line_and_drafts_of_a_killed_run_are_swept_away(lm, source, whole, tmp_path):
    how = dict(steps=7, folder=tmp_path / "run", every=3)
    with pytest.raises(Cut):
        train(lm, NOISY, source, report=cut_at(4), **how)
    with open(tmp_path / "run/log.jsonl", "a") as file:
        file.write('{"step": 5, "lo')
    (tmp_path / "run/.draft-abc").mkdir()
    (tmp_path / "run/.draft-abc/step-0000099").mkdir()
    again = train(lm, NOISY, source, resume=True, **how)
    assert same(again.weights, whole[0].weights) and again.log == whole[0].log
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["log.jsonl", "run.json", "step-0000006", "step-0000007"]


def test_a_loss_that_is_not_finite_stops_the_run_and_says_where(lm, source, tmp_path):
    learner = Noisy(budget=8, hidden=16, bias=4.0, rate=2e-2, nan_at=4)
    with pytest.raises(FloatingPointError) as error:
        train(lm, learner, source, steps=7, folder=tmp_path / "run", every=2)
    first = np.asarray(source.batch(4).tokens)[0, 0, :8].tolist()
    for part in ("step 4 of 7", "loss nan", "batch 4", source.digest, str(first), str(tmp_path / "run/step-0000004")):
        assert part in str(error.value)
    assert sorted(path.name for path in (tmp_path / "run").glob("step-*")) == ["step-0000002", "step-0000004"]
    with pytest.raises(FloatingPointError, match="step 0 of 7.*there is no checkpoint yet"):
        train(lm, Noisy(nan_at=0, budget=8, hidden=16), source, steps=7)


def test_weights_that_are_not_finite_are_found_before_they_are_kept(lm, source, tmp_path):
    with pytest.raises(FloatingPointError, match="step 0 of 5"):
        train(lm, TrimKV(budget=8, hidden=16, rate=float("nan"), warmup=1), source, steps=5, folder=tmp_path / "run", every=1)
    assert not list((tmp_path / "run").glob("step-*"))


def test_accumulated_gradients_are_those_of_one_batch(lm):
    """All texts have as many labels: the mean over parts is the mean over the batch."""
    examples, frozen, key = texts(4, seed=2), Frozen.of(lm), jax.random.key(0)
    state = begin(DUO, frozen, key, steps=5)
    state = state.replace(weights={"alpha": jnp.full((3, 2), 0.6)})
    ends = [take_step(frozen, DUO, state, stacked(examples, parts=parts), key, steps=5)[1] for parts in (1, 2, 4)]
    for graded in ends[1:]:
        np.testing.assert_allclose(graded.loss, ends[0].loss, rtol=1e-5)
    moved = [take_step(frozen, DUO, state, stacked(examples, parts=parts), key, steps=5)[0].weights for parts in (1, 2, 4)]
    for weights in moved[1:]:
        np.testing.assert_allclose(weights["alpha"], moved[0]["alpha"], atol=1e-5)


def test_seeds_and_orders_make_other_weights(lm, source):
    one, two = (train(lm, NOISY, source, steps=2, seed=seed).weights for seed in (0, 1))
    other = train(lm, NOISY, Examples(source.examples, rows=2, parts=2, seed=1), steps=2).weights
    assert not same(one, two) and not same(one, other) and same(one, train(lm, NOISY, source, steps=2).weights)


def test_every_epoch_reads_every_text_once_in_another_order():
    examples = tuple(Example((i,), (True,)) for i in range(6))
    read = [np.asarray(Examples(examples, rows=2).batch(i).tokens).ravel().tolist() for i in range(6)]
    epochs = sum(read[:3], []), sum(read[3:], [])
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(6)) and epochs[0] != epochs[1]
    assert np.asarray(Examples(examples, rows=4).batch(1).tokens).size == 4


def test_batches_are_padded_and_say_so():
    batch = stacked([Example((5, 6, 7), (False, True, True)), Example((8,), (True,))], length=4)
    np.testing.assert_array_equal(batch.tokens[0], [[5, 6, 7, 0], [8, 0, 0, 0]])
    np.testing.assert_array_equal(batch.valid[0], [[1, 1, 1, 0], [1, 0, 0, 0]])
    np.testing.assert_array_equal(batch.predicted[0], [[1, 1, 0, 0], [0, 0, 0, 0]])
    np.testing.assert_array_equal(batch.next_tokens[0], [[6, 7, 0, 0], [0, 0, 0, 0]])
    with pytest.raises(ValueError, match="make no batch of 2 parts"):
        stacked([Example((5,), (True,))] * 3, parts=2)
    with pytest.raises(ValueError, match="0 examples"):
        Examples(())


def test_what_pads_a_text_changes_no_loss(lm):
    """A text beside a longer one is graded as alone."""
    short = Example(tuple(ids_of(24, 1)), (False,) * 12 + (True,) * 12)
    for learner in (TRIM, DUO):
        weights = begin(learner, Frozen.of(lm), jax.random.key(0), steps=1).weights
        alone, padded = (
            learner.loss(weights, Frozen.of(lm), jax.tree.map(lambda x: x[0], stacked([short], length=n)), NOW).loss
            for n in (24, 40)
        )
        np.testing.assert_allclose(alone, padded, rtol=1e-5)


def test_a_mean_grade_is_the_mean_of_grades(lm):
    examples = texts(3, seed=7)
    weights = begin(TRIM, Frozen.of(lm), jax.random.key(0), steps=1).weights
    singles = [mean_grade(lm, TRIM, weights, Examples((example,)), batches=1)["loss"] for example in examples]
    np.testing.assert_allclose(mean_grade(lm, TRIM, weights, Examples(examples), batches=3)["loss"], np.mean(singles), rtol=1e-6)


def test_learners_are_learners():
    assert isinstance(TRIM, Learner) and isinstance(DUO, Learner) and hash(TRIM) == hash(TrimKV(8, 16, 4.0, 1.0, 2e-2))
