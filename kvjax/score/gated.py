"""What a gate said of a token when it was read (KVzap, Locret)."""

import jax.numpy as jnp
from flax import struct

from kvjax.evidence import Evidence, GateValues, Need
from kvjax.protocols import Decoder
from kvjax.score.per_slot import per_slot
from kvjax.stage import Scorer
from kvjax.types import Layer, Scores
from kvjax.view import LayerView


@struct.dataclass
class Gated(Scorer):
    """u_i = gate(inputs of token i). State: that number for each slot, float32; it never changes.

    Args:
        gate: which gate, with its weights.

    Raises (from `check`): ValueError for weights of another model.
    """

    gate: GateValues

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({self.gate})

    def at(self, layer: Layer) -> "Gated":
        return self.replace(gate=self.gate.at(layer))

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        self.gate.check(model)

    def init(self, shape: tuple[int, int, int]) -> Scores:
        return jnp.zeros(shape, jnp.float32)

    def observe(self, view: LayerView, evidence: Evidence) -> Scores:
        return per_slot(view, view.state, evidence.of(self.gate))

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        del evidence
        return view.state
