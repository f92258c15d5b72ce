"""Texts with what a learner measures of them before a step."""

from dataclasses import dataclass

from kvjax.protocols import LanguageModel
from kvjax.train.batch import Batch, Source
from kvjax.train.learner import Learner


@dataclass(frozen=True)
class Measured(Source):
    """Batch i of a source after `learner.measure`: still a function of i alone."""

    source: Source
    learner: Learner
    lm: LanguageModel

    @property
    def digest(self) -> str:
        return self.source.digest

    def batch(self, index: int) -> Batch:
        return self.learner.measure(self.lm, self.source.batch(index))
