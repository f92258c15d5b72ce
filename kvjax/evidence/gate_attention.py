"""What a gate that attends reads of each token: its own small queries, keys and values, made where the layer's inputs are."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float32, PyTree

from kvjax.evidence.gate_values import origin_of
from kvjax.evidence.need import Block, Shape
from kvjax.evidence.per_token import PerToken
from kvjax.gates.attention_gate import AttentionGate
from kvjax.gates.gate import check_gate
from kvjax.protocols import Decoder
from kvjax.types import Layer, Table, table


@struct.dataclass
class GateAttention(PerToken):
    """The gate's q, k and v of every token, float32 [b m3 n r]: 3 · parts · width numbers a token and layer, whatever the heads.

    The gate attends once all of the prompt is there, however it was cut. It is not defined while decoding.

    Args:
        gate: the module.   weights: its parameters, each leaf [l, ...].
        origin: where the weights came from; two needs of one gate and origin are one need.
    """

    reads: ClassVar[tuple[str, ...]] = ("x",)
    axis: ClassVar[int] = 2
    prompt_only: ClassVar[bool] = True
    gate: AttentionGate = struct.field(pytree_node=False)
    weights: Table = table()
    origin: str = struct.field(pytree_node=False, default="")

    @classmethod
    def of(cls, gate: AttentionGate, weights: PyTree, origin: str = "") -> "GateAttention":
        """With an origin made from the weights where none is given."""
        return cls(gate=gate, weights=weights, origin=origin or origin_of(weights))

    @property
    def key(self) -> str:
        return f"gate_attention_{self.gate.parts}_{self.gate.width}_{self.origin}"

    def at(self, layer: Layer) -> "GateAttention":
        return self.replace(weights=jax.tree.map(lambda x: jnp.asarray(x)[layer], self.weights))

    def check(self, model: Decoder) -> None:
        """Raise ValueError for weights of another model or gate."""
        check_gate(self.gate, self.weights, model)

    def empty(self, shape: Shape) -> Float32[Array, "b m3 n r"]:
        return jnp.zeros((shape.b, 3 * self.gate.parts, shape.n, self.gate.width), jnp.float32)

    def now(self, block: Block) -> Float32[Array, "b m3 t r"]:
        return self.gate.apply({"params": self.weights}, block.inputs.x, method="reduced")

    def logits(self, reduced: Float32[Array, "b m3 n r"], real: Bool[Array, "b n"]) -> Float32[Array, "b h n"]:
        """What the gate says of a prompt's tokens, of what was recorded of them; weights of one layer."""
        return self.gate.apply({"params": self.weights}, reduced, real, method="logits")
