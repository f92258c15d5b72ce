"""What every kind of evidence is: a fold over blocks of tokens, computed where a layer holds its weights."""

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from jax.typing import DTypeLike
from jaxtyping import Array, Float, Float32, Int32, PyTree

from kvjax.attention_inputs import AttentionInputs
from kvjax.evidence.reduce import Reduction
from kvjax.protocols import Decoder
from kvjax.types import Layer


@runtime_checkable
class Tokens(Protocol):
    """Tokens a layer has just attended with: row b holds `count[b]` real ones from position `offset[b]` on."""

    inputs: AttentionInputs
    offset: Int32[Array, " b"]
    count: Int32[Array, " b"]


@runtime_checkable
class Block(Tokens, Protocol):
    """Tokens whose attention can be told.

    Attributes:
        ids: the tokens.
        out: what the layer's attention gave for them.
    """

    ids: Int32[Array, "b t"]
    out: Float[Array, "b h g t d"] | None

    def column_sums(self) -> Float32[Array, "b h g n"]:
        """Σ_t A[t, j]: the attention mass each key receives from these tokens, of every query head."""
        ...

    def reduced(self, reduction: Reduction) -> PyTree:
        """A reduction (`kvjax.evidence.reduce`) of the attention rows of these tokens."""
        ...


@dataclass(frozen=True)
class Shape:
    """Sizes an empty fold is made from; letters of `kvjax.types`."""

    b: int
    h: int
    g: int
    n: int
    d: int
    e: int
    dtype: DTypeLike


class Need:
    """One piece of evidence: `empty` before the first token, `observe` for every block of tokens.

    A block is a whole prompt, a chunk of one, or what a decode step feeds. A need is a frozen pytree: sizes are static, weights are
    leaves (a gate is evaluated inside the prefill, and a few numbers a token are stored, never its hidden state). A stage lists its
    needs, and nothing else is recorded.

    Attributes:
        carried: whether the fold goes on while decoding; if not, a step has the evidence of its own tokens alone, made by `now`.
        reads: fields of `AttentionInputs` that a step keeps for `now` until its last layer is done.
        reads_out: whether `now` reads the attention's output, too.
        token_wise: whether what is recorded has one entry for each token of a block, [b, ..., t], and not for each slot held.
        prompt_only: whether it is not defined while decoding.
        second_pass: whether a pass after the prefill records it (`Probed`), and not the prefill.
        whole_model: whether it is of the model's output (`OfOutput`), recorded after the last layer and the same in all of them.
        reduction: the reduction of attention rows whose states it joins, where it is that and nothing else.
    """

    carried: ClassVar[bool] = False
    reads: ClassVar[tuple[str, ...]] = ()
    reads_out: ClassVar[bool] = False
    token_wise: ClassVar[bool] = False
    prompt_only: ClassVar[bool] = False
    second_pass: ClassVar[bool] = False
    whole_model: ClassVar[bool] = False
    reduction: ClassVar[Reduction | None] = None

    @property
    def key(self) -> str:
        """A name of its own in `Evidence.data`; needs of one key are one need."""
        raise NotImplementedError(f"{type(self).__name__} must define key")

    @property
    def advice(self) -> str:
        """What to run where it was not recorded."""
        return "run kvjax.prefill(lm, ids, needs=policy), or leave needs= out"

    def at(self, layer: Layer) -> "Need":
        """The need as one layer records it: weights with a layer axis cut to that layer's."""
        del layer
        return self

    def check(self, model: Decoder) -> None:
        """Raise ValueError, before anything is traced, for a model that this cannot be recorded of."""

    def empty(self, shape: Shape) -> PyTree:
        """The fold before the first token of a prompt of `shape.n` tokens."""
        raise NotImplementedError(f"{type(self).__name__} must define empty(shape)")

    def observe(self, old: PyTree, block: Block) -> PyTree:
        """The fold after a block of tokens."""
        raise NotImplementedError(f"{type(self).__name__} must define observe(old, block)")

    def now(self, block: Block) -> PyTree:
        """The evidence of a decode step alone, for needs that are not carried."""
        raise NotImplementedError(f"{type(self).__name__} is carried, or must define now(block)")

    def serves(self, other: "Need") -> bool:
        """Whether what this need records can be read as `other`."""
        return self.key == other.key

    def serve(self, data: PyTree, other: "Need") -> PyTree:
        """What this need has recorded, as `other` would have recorded it."""
        del other
        return data
