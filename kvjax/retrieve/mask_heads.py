"""Some query heads put out of action while decoding: what a head is worth is what is lost without it."""

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int32, PyTree

from kvjax.attend_context import AttendContext
from kvjax.attention_inputs import AttentionInputs
from kvjax.encoder import Encoder
from kvjax.protocols import Cache, Decoder
from kvjax.retrieve.full_attention import FullAttention
from kvjax.stage import Retriever
from kvjax.types import Layer, Queries, Table, table


def silenced(x: Float[Array, "b h g t d"], mask: Bool[Array, " q"]) -> Float[Array, "b h g t d"]:
    """x with zeros for the query heads in the mask (head h·g + i is query head i of KV head h)."""
    off = mask.reshape(x.shape[1:3])[None, :, :, None, None]
    return jnp.where(off, jnp.zeros((), x.dtype), x)


@struct.dataclass
class ZeroQuery:
    """The query is zero: the head looks at everything alike, its output is the mean of the values."""

    def before(self, q: Queries, mask: Bool[Array, " q"]) -> Queries:
        return silenced(q, mask)

    def after(self, out: Queries, mask: Bool[Array, " q"]) -> Queries:
        del mask
        return out


@struct.dataclass
class ZeroOutput:
    """The output is zero: the head adds nothing."""

    def before(self, q: Queries, mask: Bool[Array, " q"]) -> Queries:
        del mask
        return q

    def after(self, out: Queries, mask: Bool[Array, " q"]) -> Queries:
        return silenced(out, mask)


@struct.dataclass
class MaskHeads(Retriever):
    """The `inner` retriever with the query heads in `mask` disabled for every token fed after the prompt; prefill is untouched.

    Args:
        mask: bool [L, H_q], heads to disable (`kvjax.calibrate.retrieval_heads.top_heads` picks the best of a score).
        inner: how the other heads read.
        mode: ZeroQuery(), as in the published ablation, or ZeroOutput().
        origin: which heads `mask` names; two retrievers with one origin are equal.

    Raises (from `check`): ValueError for a mask that is not the model's shape.
    Source: CompressKV, arXiv 2508.02401, the masking ablation (there with the queries at zero).
    """

    mask: Table = table()
    inner: Retriever = FullAttention()
    mode: ZeroQuery | ZeroOutput = ZeroQuery()
    origin: str = struct.field(pytree_node=False, default="")

    stepwise = property(lambda self: self.inner.stepwise)
    padded = property(lambda self: self.inner.padded)
    reads_keys = property(lambda self: self.inner.reads_keys)
    still = property(lambda self: self.inner.still)
    reads_prompt = property(lambda self: self.inner.reads_prompt)
    reads_cut = property(lambda self: self.inner.reads_cut)
    reads_memory = property(lambda self: self.inner.reads_memory)
    builds = property(lambda self: self.inner.builds)
    needs = property(lambda self: self.inner.needs)

    def at(self, layer: Layer) -> "MaskHeads":
        return self.replace(mask=jnp.asarray(self.mask)[layer], inner=self.inner.at(layer))

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        mask, wanted = np.asarray(self.mask), (model.layers, model.heads * model.groups)
        if mask.shape != wanted or mask.dtype != bool:
            raise ValueError(f"MaskHeads wants a bool mask [layers, query heads] = {wanted}; got {mask.dtype} {mask.shape}")
        self.inner.check(model, length, mean_budget)

    @property
    def numbered(self) -> bool:
        return self.inner.numbered

    def reads(self, state: PyTree) -> bool:
        return self.inner.reads(state)

    def away(self, rows: list, decided: list, model: Decoder) -> list[Bool[Array, "l 1 h _"]] | None:
        return self.inner.away(rows, decided, model)

    def build(self, rows: list, decided: list, cache: Cache, encode: Encoder) -> PyTree:
        return self.inner.build(rows, decided, cache, encode)

    def check_cache(self, cache: Cache) -> None:
        self.inner.check_cache(cache)

    def asked(self, inputs: AttentionInputs) -> AttentionInputs:
        queries = {name: getattr(inputs, name) for name in ("q", "q_raw")}
        masked = {name: None if q is None else self.mode.before(q, self.mask) for name, q in queries.items()}
        return self.inner.asked(inputs.replace(**masked))

    def attend(self, inputs: AttentionInputs, cache: Cache, context: AttendContext):
        masked = inputs.replace(q=self.mode.before(inputs.q, self.mask))
        out, lse, cache = self.inner.attend(masked, cache, context)
        return self.mode.after(out, self.mask), lse, cache

    def end(self, cache: Cache, encode: Encoder, *, count: Int32[Array, " b"]) -> PyTree:
        return self.inner.end(cache, encode, count=count)
