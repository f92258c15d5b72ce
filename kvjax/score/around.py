"""Scorers that change what another one says."""

from jaxtyping import PyTree

from kvjax.evidence import Evidence, Need
from kvjax.protocols import Decoder
from kvjax.stage import Scorer
from kvjax.types import Layer, Scores
from kvjax.view import LayerView


class Around(Scorer):
    """Base of scorers around another, their field `score_of`: needs, state and checks are its own unless overridden."""

    @property
    def needs(self) -> frozenset[Need]:
        return self.score_of.needs

    @property
    def prompt_only(self) -> bool:
        return self.score_of.prompt_only

    def at(self, layer: Layer) -> "Around":
        return self.replace(score_of=self.score_of.at(layer))

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        self.score_of.check(model, length, mean_budget)

    def init(self, shape: tuple[int, int, int]) -> PyTree:
        return self.score_of.init(shape)

    def observe(self, view: LayerView, evidence: Evidence) -> PyTree:
        return self.score_of.observe(view, evidence)

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        return self.score_of.score(view, evidence)
