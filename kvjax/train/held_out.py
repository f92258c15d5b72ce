"""What the losses say of texts that nothing is learned from."""

import operator

import jax
import numpy as np
from jaxtyping import PyTree

from kvjax.protocols import LanguageModel
from kvjax.train.batch import Batch, Source
from kvjax.train.frozen import Frozen
from kvjax.train.learner import Learner, Moment
from kvjax.train.line import Line, line_of
from kvjax.train.measured import Measured
from kvjax.train.step import grade


def mean_grade(lm: LanguageModel, learner: Learner, weights: PyTree, source: Source, *, batches: int, seed: int = 0) -> Line:
    """Means over the first batches of a source, their parts alike, at the end of a run.

    Args:
        batches: how many.   seed: of what a loss draws at random.
    """
    source, frozen, key, lines = Measured(source, learner, lm), Frozen.of(lm), jax.random.key(seed), []
    for index in range(batches):
        for at, part in enumerate(parts_of(source.batch(index))):
            moment = Moment(step=jax.numpy.int32(1), key=jax.random.fold_in(jax.random.fold_in(key, index), at), steps=1)
            lines.append(line_of(index, grade(frozen, learner, weights, part, moment)))
    return {name: float(np.mean([line[name] for line in lines])) for name in lines[0] if name != "step"}


def parts_of(batch: Batch) -> list[Batch]:
    """The parts [b, t] of a batch [parts, b, t]."""
    return [jax.tree.map(operator.itemgetter(part), batch) for part in range(batch.tokens.shape[0])]
