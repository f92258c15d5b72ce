"""How a method says what of it is trained: the typed protocol between a method and `kvjax.train.train`."""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Float, Int32, PyTree

from kvjax.protocols import Decoder, LanguageModel
from kvjax.train.batch import Batch
from kvjax.train.frozen import Frozen


@struct.dataclass
class Moment:
    """Where in a run a loss is asked for.

    Attributes:
        step: counted from 0.   key: for what is drawn at random; another in every step and part of a batch.
        steps: of the whole run.
    """

    step: Int32[Array, ""]
    key: Array
    steps: int = struct.field(pytree_node=False)

    @property
    def progress(self) -> Float[Array, ""]:
        """step / steps: 0 at the start, almost 1 at the last step."""
        return self.step / jnp.float32(self.steps)


class Graded(NamedTuple):
    """What a loss says: the number to lower, the share of the cache the gates keep (0 to 1), and its terms by name."""

    loss: Float[Array, ""]
    kept: Float[Array, ""]
    terms: Mapping[str, Float[Array, ""]]


@runtime_checkable
class Learner(Protocol):
    """What of a method is trained, and for what. A frozen dataclass of numbers: it is static where a step is compiled.

    `init` or `start`, `loss` and `optimiser` are a method's own; `project`, `check` and `measure` may stay as they are.

    Attributes:
        method: a name of `kvjax.methods`: whose artefact is made.
        budget: slots per KV head, or the share of the cache, that it is trained for; None where the loss knows no budget.
    """

    method: str
    budget: int | float | None

    def init(self, key: Array, model: Decoder) -> PyTree:
        """The trainable subtree before training: float32 leaves in nested dicts; `model` is the decoder."""
        ...

    def start(self, key: Array, frozen: Frozen) -> PyTree:
        """The trainable subtree of a model whose weights matter to it, too: in place of `init` where it is made of them.

        Where the model itself is trained, it is its `own_weights`, and the loss reads the model `with_weights`.
        """
        return self.init(key, frozen.decoder)

    def loss(self, weights: PyTree, frozen: Frozen, batch: Batch, moment: Moment) -> Graded:
        """The loss of a batch [b t], differentiable in `weights`; its hooks go into `frozen.forward`."""
        ...

    def optimiser(self, steps: int) -> optax.GradientTransformation:
        """The optimiser of a run of so many steps, its schedule and clipping included."""
        ...

    def project(self, weights: PyTree) -> PyTree:
        """Weights after a step, put back to where they may be."""
        return weights

    def check(self, model: Decoder, length: int) -> None:
        """Raise ValueError for a model or a length of text that this cannot be trained with."""
        del model, length

    def measure(self, lm: LanguageModel, batch: Batch) -> Batch:
        """The batch [parts, b, t] with what the loss reads of other passes, outside the compiled step: labels of a second pass.

        Raises ValueError for texts that teach nothing.
        """
        del lm
        return batch


def settings_of(learner: Learner) -> dict[str, object]:
    """A learner's numbers by name, the budget among them."""
    return {**dataclasses.asdict(learner), "budget": learner.budget}
