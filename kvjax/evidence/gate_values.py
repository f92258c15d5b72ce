"""What a gate says of each token: evaluated where the layer's inputs are, one number a token and KV head kept."""

import hashlib
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float32, PyTree

from kvjax.evidence.need import Block, Shape
from kvjax.evidence.per_token import PerToken
from kvjax.gates.gate import ANY_MODEL, Gate, check_gate, check_retrofit, read
from kvjax.protocols import Decoder
from kvjax.types import Layer, Table, table


def origin_of(weights: PyTree) -> str:
    """A name for weights that equal ones share: twelve hexadecimal digits of all their bytes."""
    found = hashlib.sha256()
    for at, x in jax.tree_util.tree_leaves_with_path(weights):
        found.update(f"{jax.tree_util.keystr(at)} {x.dtype} {x.shape}".encode() + np.asarray(x).tobytes())
    return found.hexdigest()[:12]


@struct.dataclass
class GateValues(PerToken):
    """gate(inputs) of every token, float32 [b h n] after a prompt, [b h t] of a step. Costs the gate, and n values a KV head.

    Args:
        gate: the module.
        weights: its parameters, each leaf [l, ...].
        origin: where the weights came from; two needs of one gate and origin are one need.
    """

    axis: ClassVar[int] = 2
    gate: Gate = struct.field(pytree_node=False)
    weights: Table = table()
    origin: str = struct.field(pytree_node=False, default="")

    @classmethod
    def of(cls, gate: Gate, weights: PyTree, origin: str = "") -> "GateValues":
        """With an origin made from the weights where none is given; a gate `of_model` is then of whichever model is read."""
        return cls(gate=gate, weights=weights, origin=origin or (ANY_MODEL if gate.of_model else origin_of(weights)))

    @property
    def reads(self) -> tuple[str, ...]:
        return self.gate.reads

    @property
    def key(self) -> str:
        return f"gate_{type(self.gate).__name__}_{self.origin}"

    def at(self, layer: Layer) -> "GateValues":
        return self.replace(weights=jax.tree.map(lambda x: jnp.asarray(x)[layer], self.weights))

    def check(self, model: Decoder) -> None:
        """Raise ValueError for weights of another model or gate, or a model without the weights that a gate `of_model` reads."""
        check_gate(self.gate, self.weights, model)
        if self.gate.of_model:
            check_retrofit(self.origin, model)

    def empty(self, shape: Shape) -> Float32[Array, "b h n"]:
        return jnp.zeros((shape.b, shape.h, shape.n), jnp.float32)

    def now(self, block: Block) -> Float32[Array, "b h t"]:
        return read(self.gate, self.weights, block.inputs)
