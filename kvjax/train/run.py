"""A run of training: batch after batch, checkpoints in between, the same to the bit wherever it was cut and taken up again."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from kvjax.artefacts.artefact import model_facts
from kvjax.protocols import LanguageModel
from kvjax.train.batch import Batch, Source
from kvjax.train.checkpoints import Checkpoints
from kvjax.train.frozen import Frozen
from kvjax.train.learner import Learner, settings_of
from kvjax.train.line import Line, line_of
from kvjax.train.measured import Measured
from kvjax.train.step import TrainState, begin, take_step


class Trained(NamedTuple):
    """Weights after a run, and a line for each of its steps."""

    weights: PyTree
    log: list[Line]


def silent(line: Line, steps: int) -> None:
    """Report nothing."""


def train(
    lm: LanguageModel, learner: Learner, source: Source, *, steps: int, seed: int = 0, folder: str | Path | None = None,
    every: int = 50,
    resume: bool = False, report: Callable[[Line, int], None] = silent,
) -> Trained:  # fmt: skip
    """Train what a method learns, the model frozen.

    Args:
        lm: the language model.   learner: what is trained, and for what.   source: batches by number.
        steps: of the whole run, also where it is taken up.   seed: of the weights before, and of all that is drawn.
        folder: of checkpoints and log; nothing is written without one.   every: steps between checkpoints.
        resume: go on from the newest checkpoint in the folder, from the start where there is none.
        report: called with each step's line, and `steps`.

    Raises:
        FileExistsError, ValueError: a folder that holds a run, or another run (`Checkpoints.begin`).
        FloatingPointError: a loss, a gradient or a weight that is not finite; nothing of that step is kept.
    """
    frozen, key = Frozen.of(lm), jax.random.key(seed)
    learner.check(lm.decoder, source.batch(0).tokens.shape[-1])
    source = Measured(source, learner, lm)
    state = begin(learner, frozen, start_key(seed), steps=steps)
    kept = None if folder is None else Checkpoints(Path(folder).expanduser().resolve())
    log: list[Line] = []
    if kept is not None:
        kept.begin(facts_of(lm, learner, source, steps=steps, seed=seed), resume=resume)
        state = kept.load(state)
        log = kept.lines(int(state.step))
    for index in range(int(state.step), steps):
        state, line = _one(frozen, learner, state, source, key, steps, kept)
        log.append(line)
        report(line, steps)
        if kept is not None:
            kept.log(line)
            if (index + 1) % every == 0 or index + 1 == steps:
                kept.save(state)
    return Trained(state.weights, log)


def start_key(seed: int) -> jax.Array:
    """What weights are drawn from before the first step."""
    return jax.random.fold_in(jax.random.key(seed), 2**31 - 1)


def untrained(lm: LanguageModel, learner: Learner, seed: int = 0) -> PyTree:
    """The weights that a run of this seed begins with."""
    return begin(learner, Frozen.of(lm), start_key(seed), steps=1).weights


def _one(
    frozen: Frozen, learner: Learner, state: TrainState, source: Source, key: jax.Array, steps: int, kept: Checkpoints | None
) -> tuple[TrainState, Line]:
    """A step, and its line."""
    index = int(state.step)
    batch = source.batch(index)
    new, graded, whole = take_step(frozen, learner, state, batch, key, steps=steps)
    line = line_of(index, graded)
    if not whole:
        raise FloatingPointError(_not_finite(line, steps, source, batch, kept))
    return new, line


def _not_finite(line: Line, steps: int, source: Source, batch: Batch, kept: Checkpoints | None) -> str:
    said = ", ".join(f"{name} {x:g}" for name, x in line.items() if name != "step")
    begins = np.asarray(batch.tokens)[..., :8].reshape(-1, min(8, batch.tokens.shape[-1])).tolist()
    good = kept.steps() if kept is not None else []
    where = f"the last good checkpoint is {kept.path(good[-1])}" if good else "there is no checkpoint yet"
    return (
        f"step {line['step']} of {steps} is not finite ({said}) on batch {line['step']} of {source.digest}, whose texts begin "
        f"{begins}; {where}: lower the learning rate, or look at that batch"
    )


def facts_of(lm: LanguageModel, learner: Learner, source: Source, *, steps: int, seed: int) -> dict[str, object]:
    """What has to be the same for a run to go on."""
    run = {"method": learner.method, "settings": settings_of(learner), "data": source.digest, "steps": steps, "seed": seed}
    return {**run, "model": model_facts(lm)}
