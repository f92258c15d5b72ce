"""What a training step reads: rows of token ids, which of them count, and where they come from."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Int32, PyTree


class Example(NamedTuple):
    """A text as token ids, and which of them are labelled: the response, or the passkeys that are asked for."""

    ids: tuple[int, ...]
    label: tuple[bool, ...]


@struct.dataclass
class Batch:
    """Texts padded on the right to one length; a leading axis of parts where gradients are accumulated.

    Attributes:
        tokens: ids, 0 where padded.   valid: not padding.   label: tokens of the response; all others are the prompt.
        measured: what a learner's `measure` has made of the texts, leaves [*a b ...]; nothing where it measures nothing.
    """

    tokens: Int32[Array, "*a b t"]
    valid: Bool[Array, "*a b t"]
    label: Bool[Array, "*a b t"]
    measured: PyTree = ()

    @property
    def predicted(self) -> Bool[Array, "*a b t"]:
        """Positions whose next token is labelled."""
        return jnp.pad(self.label[..., 1:], [(0, 0)] * (self.label.ndim - 1) + [(0, 1)])

    @property
    def prompt(self) -> Bool[Array, "*a b t"]:
        """Tokens before the first labelled one."""
        return self.valid & (self.label.cumsum(-1) == 0)

    @property
    def next_tokens(self) -> Int32[Array, "*a b t"]:
        """The token after each, 0 after the last."""
        return jnp.pad(self.tokens[..., 1:], [(0, 0)] * (self.tokens.ndim - 1) + [(0, 1)])


@runtime_checkable
class Source(Protocol):
    """Batches by number: what batch i holds is a function of i alone, so that a run goes on where it was cut.

    Attributes:
        digest: names all that it can give; two sources of one digest give the same batches.
    """

    digest: str

    def batch(self, index: int) -> Batch:
        """Batch `index`, counted from 0; leaves [parts, b, t]."""


def stacked(examples: Sequence[Example], *, parts: int = 1, length: int | None = None) -> Batch:
    """Examples as one batch [parts, b, t], t = `length` or the longest of them.

    Raises:
        ValueError: examples that do not fill the parts evenly, or are longer than `length`.
    """
    longest = max(len(example.ids) for example in examples)
    t = longest if length is None else length
    if len(examples) % parts or longest > t:
        raise ValueError(f"{len(examples)} examples of up to {longest} tokens make no batch of {parts} parts and {t} tokens")
    tokens, valid, label = (np.zeros((len(examples), t), kind) for kind in (np.int32, bool, bool))
    for row, example in enumerate(examples):
        n = len(example.ids)
        tokens[row, :n], valid[row, :n], label[row, :n] = example.ids, True, example.label
    tokens, valid, label = (jnp.asarray(x.reshape(parts, -1, t)) for x in (tokens, valid, label))
    return Batch(tokens=tokens, valid=valid, label=label)
