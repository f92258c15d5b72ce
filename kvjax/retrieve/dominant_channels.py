"""Each query reads the tokens that a few frequencies of its head point at (FASA)."""

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Float32, Int32, PyTree

from kvjax.attend_context import AttendContext
from kvjax.attention_inputs import AttentionInputs
from kvjax.budget import check_budget, is_everything, slots_of
from kvjax.cache.counter import Counter
from kvjax.encoder import Encoder
from kvjax.kernels.gather_attention import gather_attention
from kvjax.placement import OnDevice
from kvjax.protocols import Cache, Decoder
from kvjax.ranges import Whole
from kvjax.retrieve.dominant import Dominant
from kvjax.retrieve.elsewhere import Elsewhere, Fetching, attend_rows, check_homes, check_whole, rows_together, saved
from kvjax.retrieve.token_lists import as_list, best
from kvjax.retrieve.top_pages import together
from kvjax.stage import Retriever
from kvjax.types import Keys, Number, size_class

_EVERY = 1 << 30


@struct.dataclass
class TipState(Fetching):
    """Attributes:
    tips: each layer's dominant channels of the prompt's keys, on the device; no tokens where they are in the pool.
    prompt: tokens of each prompt that are elsewhere.   wanted: how many tokens a query reads.
    most: the size of a list.   made_for: the layers that read everything and the origin of the channels, where slots are elsewhere.
    """

    tips: tuple[Float[Array, "b h _ c"], ...] | None
    prompt: Int32[Array, " b"]
    wanted: Int32[Array, " b"]
    most: int = struct.field(pytree_node=False)
    made_for: tuple[int, str] | None = struct.field(pytree_node=False, default=None)

    @property
    def common(self) -> str:
        return f"{super().common}, {self.tips[0].shape[-1]} channels, (whole layers, origin) = {self.made_for}"

    @property
    def raw(self) -> PyTree:
        return super().raw, self.tips

    def split(self) -> tuple["TipState", PyTree]:
        return self.replace(away=None, tips=None), (self.away, self.tips)

    def joined(self, read: PyTree) -> "TipState":
        return self.replace(away=read[0], tips=read[1])

    @staticmethod
    def stack(states: list) -> "TipState":
        away = None if states[0].away is None else Elsewhere.stack([s.away for s in states])
        tips = tuple(rows_together(layers) for layers in zip(*(s.tips for s in states), strict=True))
        bare = [s.replace(away=None, tips=None, most=0) for s in states]
        joined = jax.tree.map(lambda *x: jnp.concatenate(x), *bare)
        return joined.replace(away=away, tips=tips, most=max(s.most for s in states))


@struct.dataclass
class DominantChannels(Retriever):
    """Attention over topk_j(Σ_{c in D} q_c k_jc, N): a set for each query head, D its dominant channels.

    Args:
        dominant: D of every query head, from `kvjax.calibrate.dominant_pairs`.
        tokens: N, an int, or the share of the prompt as a float in (0, 1]; 1.0 reads everything. What the
            cache was compressed with holds.
        skip_layers: first layers that read everything, as every layer with a sliding window does.
        home: where the prompt's values and the other channels of its keys are: OnHost(), ByCallback() or OnDevice(); None leaves
            all of it in the pool: keys are scored where they lie, whole rows of them, and fewer values are read.
        origin: which model and text the channels came from.

    No token is forced in, the newest neither. With a home the device keeps the channels that a KV head's query heads have between
    them, and the tokens that came after the prompt, whole; the prompt must be held whole. Nothing is evicted.
    Raises: ValueError for channels of another model, for a coded pool, and with a home for a budget that evicts.
    Source: FASA, arXiv 2602.03152. Differs: a share is of the prompt, in the release of all tokens held so far.
    """

    state: ClassVar[type] = TipState
    stepwise: ClassVar[bool] = True
    padded: ClassVar[bool] = True
    reads_keys: ClassVar[bool] = True
    still: ClassVar[bool] = True
    dominant: Dominant = struct.field(pytree_node=False, repr=False)
    tokens: Number = 256
    skip_layers: Whole = struct.field(pytree_node=False, default=1)
    home: OnDevice | None = None
    origin: str = struct.field(pytree_node=False, default="")

    def __post_init__(self):
        check_budget(self.tokens)

    @property
    def reads_prompt(self) -> bool:
        return self.home is not None

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        found = len(self.dominant.channels), self.dominant.heads, self.dominant.d
        wanted = model.layers, model.heads, model.head_dim
        if found != wanted or len(self.dominant.channels[0]) not in (model.heads, model.heads * model.groups):
            raise ValueError(f"DominantChannels has channels of layers, KV heads and head dimension {found}, the model {wanted}")
        if self.home is not None and mean_budget < length:
            raise ValueError(
                f"DominantChannels with a home chooses among a whole prompt: leave the budget at 1.0, not {mean_budget}"
            )

    @property
    def numbered(self) -> bool:
        return self.home is not None

    def away(self, rows: list, decided: list, model: Decoder) -> list[Bool[Array, "l 1 h _"]] | None:
        if self.home is None:
            return None
        few = jnp.array([i >= self.skip_layers and window is None for i, window in enumerate(model.windows)])
        return [d.keep & few[:, None, None, None] for d in decided]

    def build(self, rows: list, decided: list, cache: Cache, encode: Encoder) -> TipState:
        if not encode.dense:
            raise ValueError(f"DominantChannels reads keys and values as numbers on the device; got {encode}: use Stored()")
        lengths = [int(row.length[0]) for row in rows]
        wanted = [_EVERY if is_everything(self.tokens) else slots_of(self.tokens, n) for n in lengths]
        most, counters = size_class(max(wanted)), {name: Counter.zeros(len(rows)) for name in ("fetched", "moved")}
        state = dict(**counters, wanted=jnp.asarray(wanted, jnp.int32), most=most)
        if self.home is None:
            none = jnp.zeros((len(rows), cache.start.shape[2], 0, self.dominant.width), cache.k.dtype)
            return TipState(away=None, tips=(none,) * cache.start.shape[0], prompt=jnp.zeros(len(rows), jnp.int32), **state)
        check_homes("DominantChannels", self.home, encode)
        check_whole("DominantChannels", rows, decided)
        parts, tips = [], []
        for row, d in zip(rows, decided, strict=True):
            kept = [self._parted(layer, k) for layer, k in enumerate(row.k)]
            parts.append([(rest, v) for (_, rest), v in zip(kept, row.v, strict=True)])
            some = np.asarray(d.away.any((1, 2, 3)))
            tips.append([tip if there else tip[:, :, :0] for (tip, _), there in zip(kept, some, strict=True)])
        away = saved(self.home, [d.away for d in decided], parts)
        tips = tuple(rows_together(layers) for layers in zip(*tips, strict=True))
        made_for = self.skip_layers, self.origin
        return TipState(away=away, tips=tips, prompt=jnp.asarray(lengths, jnp.int32), made_for=made_for, **state)

    def _parted(self, layer: int, k: Keys) -> tuple[Array, Array]:
        """A layer's keys as what stays on the device and what goes home."""
        ordered = jnp.take_along_axis(k, jnp.asarray(self.dominant.order(layer))[None, :, None], -1)
        return ordered[..., : self.dominant.width], ordered[..., self.dominant.width :]

    def check_cache(self, cache: Cache) -> None:
        if not isinstance(state := cache.retrieval, TipState):
            raise ValueError("the cache does not say how many tokens a query reads: compress it with this policy")
        if state.made_for not in (None, (self.skip_layers, self.origin)):
            layers, origin = state.made_for
            raise ValueError(
                f"the cache has keys outside its pool but those of {layers} layers, in parts by {origin or 'other channels'}; the "
                f"policy has {self.skip_layers} and {self.origin or 'others'}: compress it with this policy"
            )

    def attend(self, inputs: AttentionInputs, cache: Cache, context: AttendContext):
        q, layer = inputs.q, context.layer
        if layer < self.skip_layers or context.window is not None:
            return *context.encode.attention(q, cache, context), cache
        if q.shape[3] != 1:
            raise ValueError(f"DominantChannels chooses for one token at a time; got {q.shape[3]}")
        state, (b, h, g, _, d) = cache.retrieval, q.shape
        tip = jnp.where(jnp.asarray(self.dominant.mask(layer, g))[None, :, :, None], q, jnp.zeros((), q.dtype))
        here = context.encode.scores(tip, cache, context)[..., 0, :]
        there = self._prompt_scores(tip[..., 0, :], state, layer)
        u, split = jnp.concatenate([there, here], -1), there.shape[-1]
        chosen = best(u, u > -jnp.inf, jnp.broadcast_to(state.wanted[:, None, None], u.shape[:-1]))
        later, later_count = as_list(chosen[..., split:], state.most)
        alone = q.reshape(b, h * g, 1, 1, d)
        slots = (cache.start[layer][..., None, None] + later).reshape(b, h * g, -1)
        read = gather_attention(alone, cache.k, cache.v, slots, later_count.reshape(b, -1), bias=cache.bias)
        if split:
            prompt, prompt_count = as_list(chosen[..., :split], state.most)
            k, v = self._fetched(state, layer, prompt)
            read = together(attend_rows(alone, k, v, prompt_count.reshape(b, -1)), read)
            lists, asked = prompt.reshape(b, q.shape[1], -1), prompt_count.sum((1, 2), dtype=jnp.int32)
            cache = cache.replace(retrieval=state.took(lists, asked, context.real))
        return read[0].reshape(q.shape), read[1].reshape(q.shape[:-1]), cache

    def _prompt_scores(self, tip: Float[Array, "b h g d"], state: TipState, layer: int) -> Float32[Array, "b h g n"]:
        """q·k / sqrt(d) over dominant channels of the prompt's tokens that are elsewhere."""
        order = jnp.asarray(self.dominant.order(layer)[:, : self.dominant.width])[None, :, None]
        q, tips = jnp.take_along_axis(tip, order, -1).astype(jnp.float32), state.tips[layer].astype(jnp.float32)
        z = jnp.einsum("bhgc,bhnc->bhgn", q, tips, precision="highest") / math.sqrt(tip.shape[-1])
        return jnp.where(jnp.arange(z.shape[-1]) < state.prompt[:, None, None, None], z, -jnp.inf)

    def _fetched(self, state: TipState, layer: int, slots: Int32[Array, "b h g m"]) -> tuple[Array, Array]:
        """Keys and values [b, h·g, m, d] of tokens of the prompt, keys put together from both of their parts."""
        b, h, g, m = slots.shape
        rest, v = (state.away.take(kind, layer, slots.reshape(b, h, g * m)) for kind in (0, 1))
        tips = jnp.take_along_axis(state.tips[layer], slots.reshape(b, h, g * m)[..., None], 2)
        back = jnp.asarray(np.argsort(self.dominant.order(layer), -1))[None, :, None]
        k = jnp.take_along_axis(jnp.concatenate([tips, rest], -1), back, -1)
        return k.reshape(b, h * g, m, -1), v.reshape(b, h * g, m, -1)
