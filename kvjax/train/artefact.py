"""Trained weights as an artefact."""

from collections.abc import Mapping

import numpy as np
from jax.typing import DTypeLike
from jaxtyping import PyTree

from kvjax.artefacts.artefact import Artefact, model_facts
from kvjax.artefacts.weights import tables_of
from kvjax.protocols import LanguageModel
from kvjax.train.learner import Learner, settings_of


def artefact_of(
    lm: LanguageModel, learner: Learner, weights: PyTree, *, data: Mapping[str, object], run: Mapping[str, object],
    dtype: DTypeLike = np.float32, passages: str = "",
) -> Artefact:  # fmt: skip
    """What `kvjax.methods` takes: weights, the model they are of, what they were trained for and on.

    Args:
        data: what was read: source, sha256, samples, tokens.   run: what else decided the numbers: steps, seed, version.
        dtype: of the tables; of a built-in artefact float16.   passages: a sketch of the text that was read (`Artefact`).

    Raises:
        ValueError: facts of the run under the names of the learner's settings.
    """
    settings = settings_of(learner)
    if both := settings.keys() & run.keys():
        raise ValueError(f"{sorted(both)} are settings of {learner.method}: call these facts of the run something else")
    return Artefact(learner.method, model_facts(lm), data, {**settings, **run}, tables_of(weights, dtype), passages)
