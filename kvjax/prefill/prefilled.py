"""Prompts after prefill."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Float32, Int32, UInt32

from kvjax.evidence import Evidence, Need
from kvjax.protocols import Decoder
from kvjax.short_repr import attempt, counted, megabytes, nbytes_of, one_line, span
from kvjax.weights_mark import UNKNOWN


@struct.dataclass
class PrefilledRow:
    """One prompt: dense keys and values of every layer, padded on the right to a bucket.

    Attributes:
        ids: int32 [n], the prompt, padded with zeros.
        length: int32 [1], its true length.
        k, v: one [1, h, n, d] array a layer.
        evidence: what each layer recorded.
        logits: float32 [v] after the last token. all_logits: float32 [n, v] if asked for.
        pos: int32 [1, n], positions of the layer's tokens where others have left the prompt; `length` or more for padding.
        made_by: uint32 [1], mark of the model's weights (`kvjax.weights_mark`), or None.
    """

    ids: Int32[Array, " n"]
    length: Int32[Array, "1"]
    k: tuple[Float[Array, "1 h n d"], ...]
    v: tuple[Float[Array, "1 h n d"], ...]
    evidence: tuple[Evidence, ...]
    logits: Float32[Array, " v"]
    all_logits: Float32[Array, "n v"] | None = None
    pos: Int32[Array, "1 n"] | None = None
    made_by: UInt32[Array, "1"] | None = None

    def __repr__(self) -> str:
        """Its sizes in one line."""
        return one_line(
            "PrefilledRow",
            attempt(lambda: counted(int(np.asarray(self.length)[0]), "token")),
            attempt(lambda: counted(len(self.k), "layer")),
            attempt(lambda: megabytes(nbytes_of(self))),
        )


@struct.dataclass
class Prefilled:
    """Prompts after prefill: compress it with any number of policies; nothing changes it.

    Attributes:
        rows: the prompts.
        needs: what was recorded of every layer, in the order of their keys.
        decoder: the model's layers, without weights.
        first: which layer of the model k[0] is of: 0 but where one layer at a time is there (`kvjax.prefill.by_layer`).
    """

    rows: tuple[PrefilledRow, ...]
    needs: tuple[Need, ...]
    decoder: Decoder = struct.field(pytree_node=False)
    first: int = struct.field(pytree_node=False, default=0)

    def __repr__(self) -> str:
        """Its sizes in one line: prompts, tokens, layers and heads, bytes, and what of the evidence was recorded."""
        return one_line(
            "Prefilled",
            attempt(lambda: counted(len(self.rows), "prompt")),
            attempt(lambda: f"{span(self.lengths)} tokens"),
            attempt(lambda: f"{counted(len(self.layers), 'layer')} x {counted(self.rows[0].k[0].shape[1], 'head')}"),
            attempt(lambda: megabytes(self.nbytes)),
            attempt(lambda: counted(len(self.needs), "need") if self.needs else ""),
        )

    @property
    def layers(self) -> range:
        """Which layers of the model are there."""
        return range(self.first, self.first + len(self.rows[0].k))

    @property
    def lengths(self) -> list[int]:
        """Tokens of each prompt."""
        return [int(np.asarray(row.length)[0]) for row in self.rows]

    @property
    def made_by(self) -> UInt32[Array, " b"]:
        """Mark of the weights that each prompt was read with, `UNKNOWN` of one that does not say."""
        marks = [jnp.full(1, UNKNOWN, jnp.uint32) if row.made_by is None else row.made_by for row in self.rows]
        return jnp.concatenate(marks)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays held."""
        return sum(x.nbytes for x in jax.tree.leaves(self.rows))
