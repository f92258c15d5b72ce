"""Each query reads the pages whose keys could match it best (Quest)."""

from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Float32, Int32

from kvjax.attend_context import AttendContext
from kvjax.attention_inputs import AttentionInputs
from kvjax.budget import check_budget, slots_of
from kvjax.encoder import Encoder
from kvjax.kernels.bound_scores import bound_scores
from kvjax.kernels.gather_attention import gather_attention
from kvjax.kernels.list_top import list_top
from kvjax.kernels.ragged_attention import ragged_attention
from kvjax.kernels.select_top import ordered
from kvjax.protocols import Cache
from kvjax.ranges import Whole
from kvjax.retrieve.page_bounds import PageBounds, page_bounds
from kvjax.stage import Retriever
from kvjax.types import ALIGN, Function, Number, power_of_two, size_class

PerPage = Float32[Array, "b h _ p"]


@struct.dataclass
class OwnPages:
    """Every query head reads pages of its own: as in the released accuracy code, and the default."""

    def __call__(self, bounds: PerPage) -> PerPage:
        return bounds


@struct.dataclass
class SharedPages:
    """The query heads of a KV head read the pages of the largest bound among them: one list, one reading for the group."""

    def __call__(self, bounds: PerPage) -> PerPage:
        return bounds.max(2, keepdims=True)


@struct.dataclass
class TopPages(Retriever):
    """Attention over the pages of the largest bound u = Σ_c max(q_c M_c, q_c m_c), M and m the page's greatest and least keys.

    Pages are `page_size` slots of what compress left of the prompt, in order. Slots behind the last whole page and tokens that came
    after the prompt are always read; they count as one page.

    Args:
        token_budget: what a query reads, in pages: an int, or the share of the prompt as a float in (0, 1]. At least three; what
            the cache was compressed with holds.
        page_size: slots of a page.   skip_layers: first layers that read everything, as every layer with a sliding window does.
        heads: OwnPages() (a list for every query head) or SharedPages() (one for the query heads of a KV head).

    Nothing is evicted; the bounds take 2 / page_size of the keys' bytes on top. How many tokens, or what share, is data.
    Needs keys as numbers and values on the device, and slots that keep their place: nothing may be evicted while decoding.
    Raises: TypeError, ValueError for numbers out of range; for an encoder or a schedule of another kind, when compressing.
    Source: Quest, arXiv 2406.10774, section 3.2. Differs: generated tokens are read as they come instead of filling pages; that the
    last page is always read is as in the release's kernels, in its accuracy code it competes.
    """

    state: ClassVar[type] = PageBounds
    stepwise: ClassVar[bool] = True
    reads_keys: ClassVar[bool] = True
    still: ClassVar[bool] = True
    token_budget: Number = 1024
    page_size: int = struct.field(pytree_node=False, default=16)
    skip_layers: Whole = struct.field(pytree_node=False, default=2)
    heads: Function = OwnPages()

    def __post_init__(self):
        check_budget(self.token_budget)
        if self.page_size < 1 or self.page_size % ALIGN:
            raise ValueError(f"a page is a multiple of {ALIGN} slots, as regions are aligned; got page_size={self.page_size}")

    def build(self, rows: list, decided: list, cache: Cache, encode: Encoder) -> PageBounds:
        if not encode.dense:
            raise ValueError(f"TopPages reads keys and values as numbers on the device; got {encode}: use Stored()")
        held = np.concatenate([np.asarray(d.count) for d in decided], axis=1)
        full = (held // self.page_size).astype(np.int32)
        wanted = [self._pages(int(row.length[0]), int(full[:, r].max())) for r, row in enumerate(rows)]
        pages = size_class(int(full.max()))

        def of_layer(i):
            return page_bounds(cache.k, cache.start[i], jnp.asarray(full[i]), size=self.page_size, pages=pages)

        bounds = [of_layer(i) for i in range(self.skip_layers, len(full))]
        low, high = (tuple(b[side] for b in bounds) for side in (0, 1))
        count = dict(full=jnp.asarray(full), pages=jnp.asarray(wanted, jnp.int32))
        return PageBounds(low=low, high=high, **count, most=min(power_of_two(max(wanted)), pages), size=self.page_size)

    def _pages(self, length: int, full: int) -> int:
        """Pages a query of a prompt of `length` tokens reads beside the last."""
        asked = slots_of(self.token_budget, length)
        return full if asked >= length else max(3, asked // self.page_size) - 1

    def check_cache(self, cache: Cache) -> None:
        if not isinstance(state := cache.retrieval, PageBounds):
            raise ValueError("the cache has no bounds of its pages: compress it with this policy")
        if (state.size, len(state.low)) != (self.page_size, max(cache.start.shape[0] - self.skip_layers, 0)):
            raise ValueError(
                f"the cache has pages of {state.size} slots in its last {len(state.low)} layers, not of {self.page_size} in all "
                f"but {self.skip_layers}: compress it with this policy"
            )

    def attend(self, inputs: AttentionInputs, cache: Cache, context: AttendContext):
        layer, q = context.layer, inputs.q
        if layer < self.skip_layers or context.window is not None:
            return *context.encode.attention(q, cache, context), cache
        if q.shape[3] != 1:
            raise ValueError(f"TopPages selects for one token at a time; got {q.shape[3]}")
        paged = self._paged(q, cache, layer)
        behind = cache.retrieval.full[layer] * self.page_size
        where = cache.start[layer] + behind, cache.length[layer] - behind
        rest = ragged_attention(q, cache.k, cache.v, cache.pos, *where, context.positions, bias=cache.bias)
        return *together(paged, rest), cache

    def _paged(self, q: Float[Array, "b h g 1 d"], cache: Cache, layer: int):
        """Attention over the pages chosen, (out, lse)."""
        state, (b, h, g, _, d) = cache.retrieval, q.shape
        low, high = (side[layer - self.skip_layers] for side in (state.low, state.high))
        bounds = self.heads(bound_scores(q[:, :, :, 0], low, high, state.full[layer]))
        lists = bounds.shape[2]
        slots, count = listed_pages(bounds, state.full[layer], state.pages, most=state.most, size=self.page_size)
        slots = (cache.start[layer][..., None, None] + slots).reshape(b, h * lists, -1)
        rows, count = q.reshape(b, h * lists, g // lists, 1, d), count.reshape(b, -1)
        out, lse = gather_attention(rows, cache.k, cache.v, slots, count, bias=cache.bias)
        return out.reshape(q.shape), lse.reshape(q.shape[:-1])


def listed_pages(
    bounds: PerPage, full: Int32[Array, "b h"], pages: Int32[Array, " b"], *, most: int, size: int
) -> tuple[Int32[Array, "b h _ m"], Int32[Array, "b h _"]]:
    """Slots of the `pages` of largest bound among the first `full`, in order from a region's first on, and how many to read."""
    real = jnp.arange(bounds.shape[-1]) < full[..., None, None]
    wanted = jnp.broadcast_to(pages[:, None, None], bounds.shape[:-1])
    chosen = list_top(jnp.where(real, ordered(bounds), 0), wanted, most=most)
    slots = chosen[..., None] * size + jnp.arange(size, dtype=jnp.int32)
    count = jnp.minimum(pages[:, None], full)[..., None] * size
    return slots.reshape(*chosen.shape[:-1], most * size), jnp.broadcast_to(count, chosen.shape[:-1])


def together(a, b):
    """(out, lse) of attention over two sets of slots that have none in common, from those of each: sum_i exp(lse_i - lse) out_i."""
    lse = jnp.logaddexp(a[1], b[1])

    def share(x):
        return jnp.where(x[1] > -jnp.inf, jnp.exp(x[1] - lse), 0.0)[..., None]

    return (a[0] * share(a) + b[0] * share(b)).astype(a[0].dtype), lse
