"""Dynamic sparse prompt attention: a pattern for each query head, its indices from the prompt itself (MInference)."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int32

from kvjax.artefacts.artefact import Artefact, resolve
from kvjax.attention_inputs import AttentionInputs
from kvjax.evidence import Shape
from kvjax.prefill.attention import CausalAttention, PrefillAttention, PrefillChunk
from kvjax.prefill.chunk_block import MaskedBlock
from kvjax.prefill.patterns import FORCED_OFFSETS, Pattern, VerticalSlash, of_table, sizes_of
from kvjax.prefill.sparse_attention import sparse_attention
from kvjax.prefill.sparse_index import SparseIndex, sees, sparse_index
from kvjax.protocols import Decoder, Rope
from kvjax.types import Keys, Values, size_class


@dataclass(frozen=True)
class MInference(PrefillAttention):
    """Each query head sees the keys of its pattern: (columns ∪ diagonals ∪ blocks) ∩ causal; what is stored is everything.

    Args:
        patterns: one for all heads, or `[L][H_q]`, one a query head (`kvjax.calibrate.minference.assign`, `MInference.of`).

    Only tiles of 64 queries by 64 keys with something chosen are computed. All layers run one program.
    A prompt is run whole, as in the paper, unless a chunk is asked for: each chunk is then estimated by itself, from its last 64
    real queries, in less memory.
    Source: MInference, arXiv 2407.02490, section 3. Differs: the mask is exact where the released kernel rounds diagonals up to
    blocks of 64; a block-sparse head always sees its own block.
    """

    #: Offsets from 0 on that vertical-slash heads see before all others.
    nearest: ClassVar[int] = FORCED_OFFSETS

    patterns: Pattern | tuple[tuple[Pattern, ...], ...] = VerticalSlash()

    @classmethod
    def of(cls, artefact: Artefact | str | Path | np.ndarray) -> "MInference":
        """From an artefact, a folder of one, or an int table [L, H_q, 3] (`kvjax.prefill.patterns.of_table`)."""
        table = artefact if isinstance(artefact, np.ndarray) else resolve(artefact, "minference").tables["patterns"]
        return cls(of_table(np.asarray(table)))

    def begin(self, shape: Shape, layer: int) -> Int32[Array, "h g 5"]:
        """The sizes of the layer's patterns."""
        every = isinstance(self.patterns, Pattern)
        patterns = (self.patterns,) * (shape.h * shape.g) if every else self.patterns[layer]
        return jnp.asarray(sizes_of(patterns).reshape(shape.h, shape.g, 5))

    @property
    def most(self) -> int:
        """Columns of the head with most."""
        patterns = (self.patterns,) if isinstance(self.patterns, Pattern) else sum(self.patterns, ())
        first, _, columns, _, _ = sizes_of(patterns).T
        return max(1, int(first.max()), int(columns.max()))

    def check(self, decoder: Decoder, chunk: int | None) -> None:
        """Raise ValueError for a model with sliding windows, patterns of another model, or a chunk that is no multiple of 64."""
        CausalAttention().check(decoder, chunk)
        if any(window is not None for window in decoder.windows):
            raise ValueError("sparse prefill needs full attention: this model has layers with a sliding window")
        if isinstance(self.patterns, Pattern):
            return
        wanted = (decoder.layers, decoder.heads * decoder.groups)
        if len(self.patterns) != wanted[0] or any(len(layer) != wanted[1] for layer in self.patterns):
            raise ValueError(f"MInference wants a pattern for each of {wanted} layers and query heads: assign them on this model")

    def plan(self, length: int, chunk: int | None) -> tuple[int, list[PrefillChunk]]:
        n, chunks = CausalAttention().plan(length, chunk or size_class(length, steps=8))
        return n, [part._replace(attention=self) for part in chunks]

    def attend_after(
        self, memory: Int32[Array, "h g 5"], inputs: AttentionInputs, k: Keys, v: Values, *, ids: Int32[Array, "b t"],
        offset: Int32[Array, ""], count: Int32[Array, " b"], window: int | None, rope: Rope | None,
    ) -> tuple[Float[Array, "b h g t d"], "SparseBlock", Int32[Array, "h g 5"]]:  # fmt: skip
        del window, rope
        index = sparse_index(memory, inputs.q, k, offset, count, most=self.most, nearest=self.nearest)
        out, lse = sparse_attention(inputs.q, k, v, index, offset=offset)
        at = jnp.full_like(count, offset)
        block = SparseBlock(inputs=inputs, ids=ids, out=out, k=k, lse=lse, index=index, offset=at, count=count)
        return out, block, memory


@struct.dataclass
class SparseBlock(MaskedBlock):
    """Tokens that see what `index` says, as evidence sees them."""

    index: SparseIndex

    def mask(self, rows: Int32[Array, " r"]) -> Bool[Array, "b h g r n"]:
        return sees(self.index, rows, self.offset[0])
