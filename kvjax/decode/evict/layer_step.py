"""What the attention of a step leaves to scorers, until they read it after the last layer."""

from collections.abc import Iterable

from flax import struct
from jaxtyping import Array, Float, Float32, Int32

from kvjax import evidence as ev
from kvjax.attention_inputs import AttentionInputs


@struct.dataclass
class StepTokens:
    """The tokens of a step as evidence that is carried on sees them."""

    inputs: AttentionInputs
    ids: Int32[Array, "b t"]
    out: Float[Array, "b h g t d"]
    offset: Int32[Array, " b"]
    count: Int32[Array, " b"]


@struct.dataclass
class LayerStep:
    """Of one layer.

    Attributes:
        evidence: what is carried on, the step's tokens included.
        inputs: the fields of `AttentionInputs` that needs of the step alone read, by name.
        out: the attention's output.   lse: log of its softmax denominators. None where there are no such needs.
    """

    evidence: ev.Evidence
    inputs: dict[str, Array]
    out: Float[Array, "b h g t d"] | None
    lse: Float32[Array, "b h g t"] | None

    @classmethod
    def of(
        cls, old: ev.Evidence, inputs: AttentionInputs, out: Array, lse: Array, *, needs: Iterable[ev.Need], query: str, ids: Array,
        offset: Array, count: Array,
    ) -> "LayerStep":  # fmt: skip
        """A layer's after a step of `count` tokens a row from `offset` on.

        `needs` are the scorer's; `query` names the queries that attended, which tell the attention's rows.
        """
        carried = [need for need in needs if need.carried]
        alone = [need for need in needs if not need.carried and not need.whole_model]
        block = StepTokens(inputs=inputs, ids=ids, out=out, offset=offset, count=count)
        names = {name for need in alone for name in need.reads}
        read = {name: getattr(inputs, name) for name in sorted(names | {query} if "q" in names else names)}
        return cls(
            evidence=ev.observe(old, carried, block),
            inputs=read,
            out=out if any(need.reads_out for need in alone) else None,
            lse=lse if alone else None,
        )
