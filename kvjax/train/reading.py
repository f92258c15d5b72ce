"""Gates that are only asked: the forward pass is the plain one, and a loss hears what they say."""

from jaxtyping import Array, Float, PyTree

from kvjax.attention_inputs import AttentionInputs
from kvjax.gates.gate import Gate, read
from kvjax.train.forward import Attend, Hook


def reading(gate: Gate) -> Hook:
    """A hook that leaves attention as it is and gives back the gate's values [b h t] of the layer."""

    def hook(layer: int, weights: PyTree, inputs: AttentionInputs, attend: Attend) -> tuple[Float[Array, "..."], Array]:
        del layer
        return attend(inputs), read(gate, weights, inputs)

    return hook
