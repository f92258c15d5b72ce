"""How an eviction's stages see a step and the slots of a cache."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Float32, Int32, PyTree

from kvjax.attend_context import AttendContext
from kvjax.attention_inputs import AttentionInputs
from kvjax.cache.kv_cache import KVCache
from kvjax.decode.evict.layer_step import LayerStep
from kvjax.encoder import Encoder
from kvjax.evidence import Evidence
from kvjax.evidence.reduce import Reduction, RowsAt
from kvjax.kernels.ragged_attention import probabilities
from kvjax.policy import DecodeStages
from kvjax.protocols import Rope
from kvjax.types import Layer
from kvjax.view import LayerView


@dataclass(frozen=True)
class Reader:
    """What a policy reads by after a step.

    Attributes:
        stages, encode: the stages that evict, and how slots are stored.
        dtype: of the keys and values they see.
        windows: each layer's sliding window.
        padded_slots: a bound on the slots of a region.
        rope: the model's rotary embedding.
        ids: the step's tokens.
        offset, count: position of the step's first token and its tokens, by row.
        output: what is of the model's output, by the keys of its needs.
    """

    stages: DecodeStages
    encode: Encoder
    dtype: DTypeLike
    windows: tuple[int | None, ...]
    padded_slots: int
    rope: Rope | None
    ids: Int32[Array, "b t"]
    offset: Int32[Array, " b"]
    count: Int32[Array, " b"]
    output: dict[str, Float32[Array, "b t"]]

    def evidence(self, cache: KVCache, layer: Layer, left: LayerStep, order: Int32[Array, "b h n"] | None = None) -> Evidence:
        """A layer's evidence: what is carried, and what is of the step alone, by slot of the region or in the `order` of a view."""
        block = StepBlock(reader=self, cache=cache, layer=layer, left=left, order=order)
        alone = [need for need in self.stages.score.at(layer).needs if not need.carried]
        now = {need.key: self.output[need.key] if need.whole_model else need.now(block) for need in alone}
        return left.evidence.replace(data={**left.evidence.data, **now})

    def windows_of(self, layers: Int32[Array, " l"]) -> Int32[Array, "l b"] | None:
        """Layers' sliding windows in positions of the text; None where none has one, or it counts what is kept."""
        if self.encode.positions.ranked or not any(self.windows):
            return None
        return jnp.broadcast_to(self.reaches[layers][:, None], (len(layers), len(self.offset)))

    @property
    def reaches(self) -> Int32[Array, " l"]:
        """Each layer's sliding window as a number, far beyond every text for none."""
        far = jnp.iinfo(jnp.int32).max
        return jnp.asarray([far if window is None else window for window in self.windows], jnp.int32)

    def view(
        self, cache: KVCache, layer: Layer, slots: Int32[Array, "b h n"], valid: Bool[Array, "b h n"], state: PyTree
    ) -> LayerView:
        """The dense view of a layer's slots as they are stored, with the state of the stage it is for, given as pools.

        Keys and values are gathered only if the stage reads them.
        """
        take = partial(_take, slots=slots)
        k, v = self.encode.at(layer).take(cache, layer, slots, self.dtype)
        return LayerView(
            k=k,
            v=v,
            pos=take(cache.pos).astype(jnp.int32),
            valid=valid,
            length=self.offset + self.count,
            state=jax.tree.map(take, state),
            bias=None if cache.bias is None else take(cache.bias),
            since=self.offset,
            prompt=cache.position - cache.steps,
        )

    def seen(
        self, cache: KVCache, layer: Layer, slots: Int32[Array, "b h n"], valid: Bool[Array, "b h n"], state: PyTree
    ) -> LayerView:
        """`view` with keys where the text has them, as scorers see them."""
        view = self.view(cache, layer, slots, valid, state)
        return view.replace(k=self.encode.positions.seen(view.k, view.pos, self.rope))


def _take(pool: Array, slots: Int32[Array, "b h n"]) -> Array:
    return jnp.take(pool, slots, axis=0, mode="clip")


@dataclass(frozen=True)
class StepBlock:
    """The tokens of a step as needs of the step alone see them, after its last layer."""

    reader: Reader
    cache: KVCache
    layer: Layer
    left: LayerStep
    order: Int32[Array, "b h n"] | None

    @property
    def inputs(self) -> AttentionInputs:
        return AttentionInputs(**self.left.inputs)

    @property
    def out(self) -> Float[Array, "b h g t d"] | None:
        return self.left.out

    @property
    def ids(self) -> Int32[Array, "b t"]:
        return self.reader.ids

    @property
    def offset(self) -> Int32[Array, " b"]:
        return self.reader.offset

    @property
    def count(self) -> Int32[Array, " b"]:
        return self.reader.count

    def rows(self) -> Float32[Array, "b h g t n"]:
        """Attention probabilities of the step's tokens over the slots of each region; 0 for tokens that are not real."""
        reader, t = self.reader, jnp.arange(self.inputs.q.shape[3], dtype=jnp.int32)
        windows = sorted(set(reader.windows), key=str)

        def scores(window: int | None) -> Float32[Array, "b h g t n"]:
            encode = reader.encode.at(self.layer)
            context = AttendContext(
                layer=self.layer, positions=self.offset[:, None] + t, window=window, padded_slots=reader.padded_slots,
                encode=encode, rope=reader.rope,
            )  # fmt: skip
            return encode.scores(getattr(self.inputs, encode.positions.query), self.cache, context)

        which = jnp.asarray([windows.index(window) for window in reader.windows])[self.layer]
        p = probabilities(lax.switch(which, [partial(scores, window) for window in windows]), self.left.lse)
        p = jnp.where((t < self.count[:, None])[:, None, None, :, None], p, 0.0)
        return p if self.order is None else jnp.take_along_axis(p, self.order[:, :, None, None], -1)

    def column_sums(self) -> Float32[Array, "b h g n"]:
        return self.rows().sum(3)

    def reduced(self, reduction: Reduction) -> PyTree:
        t = jnp.arange(self.inputs.q.shape[3], dtype=jnp.int32)
        queries, keys = self.offset[:, None] + t, self._by_slot(self._positions())
        steps, prompt = self.cache.steps[:, None] + 1 + t, self.cache.position - self.cache.steps
        where = RowsAt(keys=keys, steps=steps, prompt=prompt)
        return reduction.of_rows_at(self.rows(), queries, self._visible(queries, keys), where)

    def _visible(self, queries: Int32[Array, "b t"], keys: Int32[Array, "b h n"]) -> Bool[Array, "b h g t n"]:
        """Which slots the step's real tokens see; a sliding window counts places, as attention does."""
        slots = jnp.arange(self.reader.padded_slots, dtype=jnp.int32)
        used = self._by_slot(slots < self.cache.length[self.layer][..., None])
        real = queries < (self.offset + self.count)[:, None]
        at, seen = queries[:, None, None, :, None], keys[:, :, None, None]
        visible = used[:, :, None, None] & real[:, None, None, :, None] & (seen <= at)
        positions = self.reader.encode.positions
        if positions.at_reading and any(self.reader.windows):
            places, now = positions.places(keys, used, queries)
            at, seen = now[:, :, None, :, None], places[:, :, None, None]
        visible &= at - seen < self.reader.reaches[self.layer]
        return jnp.broadcast_to(visible, (*visible.shape[:2], self.inputs.q.shape[2], *visible.shape[3:]))

    def _positions(self) -> Int32[Array, "b h n"]:
        """Positions of the slots of each region."""
        slots = self.cache.start[self.layer][..., None] + jnp.arange(self.reader.padded_slots, dtype=jnp.int32)
        return _take(self.cache.pos, slots).astype(jnp.int32)

    def _by_slot(self, x: Array) -> Array:
        """Numbers by slot of a region, in the order of the view."""
        return x if self.order is None else jnp.take_along_axis(x, self.order, -1)


def zeros(f: Callable, x: PyTree) -> PyTree:
    """Zeros for everything that f(x) gives."""
    forms = []

    def leaves(x: PyTree) -> list[Array]:
        flat, form = jax.tree.flatten(f(x))
        forms.append(form)
        return flat

    shapes = jax.eval_shape(leaves, x)
    return jax.tree.unflatten(forms[0], [jnp.zeros(y.shape, y.dtype) for y in shapes])
