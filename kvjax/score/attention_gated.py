"""How sure a gate that attends to the prompt is that a token is worth keeping (Attention-Gate)."""

import jax
from flax import struct

from kvjax.evidence import Evidence, GateAttention, Need
from kvjax.protocols import Decoder
from kvjax.stage import Scorer
from kvjax.types import Layer, Scores
from kvjax.view import LayerView


@struct.dataclass
class AttentionGated(Scorer):
    """u_i = p_i = σ(gate(x_1, ..., x_n)_i), of the prompt's tokens.

    Args:
        gate: which gate, with its weights.

    Raises (from `check`): ValueError for weights of another model.
    Source: Attention-Gate, arXiv 2410.12876, section 3.1.
    """

    gate: GateAttention

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({self.gate})

    def at(self, layer: Layer) -> "AttentionGated":
        return self.replace(gate=self.gate.at(layer))

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        self.gate.check(model)

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        return jax.nn.sigmoid(self.gate.logits(evidence.of(self.gate), view.valid[:, 0]))
