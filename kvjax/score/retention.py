"""What is left of a token that decays by a factor of its own at every step (TRIM-KV)."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float32, Int32

from kvjax.evidence import Evidence, GateValues, Need
from kvjax.score.per_slot import per_slot
from kvjax.stage import Scorer
from kvjax.types import Layer, Positions, Scores
from kvjax.view import LayerView


def retention(log_beta: Float32[Array, "b h n"], pos: Positions, length: Int32[Array, " b"]) -> Scores:
    """(t + 2 - i) log β_i: the logarithm of β_i^(t+2-i), with t the newest token's position and t + 1 = length."""
    return (length[:, None, None] + 1 - pos) * log_beta


@struct.dataclass
class Retention(Scorer):
    """u_i = (t + 2 - i) log β_i, log β_i said by a gate when token i was read.

    The order of two tokens turns with their age, so scores are made anew at every eviction. State: log β of each slot, float32.

    Args:
        gate: which gate, with its weights.

    Raises (from `check`): ValueError for weights of another model.
    Source: TRIM-KV, arXiv 2512.03324, section 4.3; the exponent t + 2 - i is the release's, the paper has t - i.
    """

    gate: GateValues

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({self.gate})

    def at(self, layer: Layer) -> "Retention":
        return self.replace(gate=self.gate.at(layer))

    def check(self, model: object, length: int, mean_budget: int) -> None:
        self.gate.check(model)

    def init(self, shape: tuple[int, int, int]) -> Scores:
        return jnp.zeros(shape, jnp.float32)

    def observe(self, view: LayerView, evidence: Evidence) -> Scores:
        return per_slot(view, view.state, evidence.of(self.gate))

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        del evidence
        return retention(view.state, view.pos, view.length)
