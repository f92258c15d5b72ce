"""What the next token says of a token (DMS)."""

import jax.numpy as jnp
from flax import struct

from kvjax.evidence import Evidence, GateValues, Need
from kvjax.protocols import Decoder
from kvjax.score.per_slot import per_slot
from kvjax.stage import Scorer
from kvjax.types import Layer, Scores
from kvjax.view import LayerView


@struct.dataclass
class JudgedByNext(Scorer):
    """u_i = -gate(inputs of token i + 1); 0 for the newest token, which nothing has judged. It never changes.

    State: that number for each slot, float32.

    Args:
        gate: which gate, with its weights: the higher, the less a token is worth.

    Raises (from `check`): ValueError for weights of another model.
    Source: DMS, arXiv 2506.05345, as released: a decision governs the token before the one that makes it.
    """

    gate: GateValues

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({self.gate})

    def at(self, layer: Layer) -> "JudgedByNext":
        return self.replace(gate=self.gate.at(layer))

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        self.gate.check(model)

    def init(self, shape: tuple[int, int, int]) -> Scores:
        return jnp.zeros(shape, jnp.float32)

    def observe(self, view: LayerView, evidence: Evidence) -> Scores:
        after = view.pos + 1
        judged = view.replace(pos=after, valid=view.valid & (after < view.length[:, None, None]))
        return per_slot(judged, view.state, -evidence.of(self.gate))

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        del evidence
        return view.state
