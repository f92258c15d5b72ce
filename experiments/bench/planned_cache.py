"""A cache that is not allocated: `compress` as shapes, by the library's own stages, layout and stores."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kvjax.allocate.roles import RoleBudgets, role_budgets
from kvjax.cache.kv_cache import KVCache
from kvjax.cache.layout import plan_regions
from kvjax.compress.pools import empty_pools
from kvjax.compress.run import carried
from kvjax.policy import Policy
from kvjax.prefill.attention import bucket
from kvjax.prefill.run import buffers
from kvjax.stage import Retriever
from kvjax.types import ALIGN, AT_REST, DECODING, power_of_two


@dataclass(frozen=True)
class Row:
    """A prefilled prompt as retrievers read it; `length` is NumPy's, so that it is a number while shapes are traced."""

    length: np.ndarray
    k: list
    v: list
    evidence: list


@dataclass(frozen=True)
class Decided:
    """What `compress` decided for it; `away` is NumPy's, as the length is."""

    keep: Any
    count: np.ndarray
    mean_budget: int
    away: np.ndarray | None = None


@dataclass(frozen=True)
class Planned:
    """A cache as shapes.

    Attributes:
        leaves: (field of KVCache, its array's shape and memory space), in the order of `structure`.
        slots: of the pool.   widest: slots of the widest region; the mean where the policy shares them out by the prompt.
    """

    leaves: list[tuple[str, Any]]
    structure: Any
    slots: int
    widest: int

    def padding(self, policy: Policy) -> int:
        """Slots a region is padded to while decoding, as `kvjax.decode` chooses them."""
        return power_of_two(self.widest) if policy.padded else 0


def kept(decoder: Any, policy: Policy, length: int) -> np.ndarray:
    """Slots each (layer, row, KV head) keeps of a prompt, int [L, 1, H]; the mean of all where the prompt decides who gets them.

    Raises:
        ValueError: a prompt that the policy refuses, or an allocator whose total depends on the prompt.
    """
    policy.check(decoder, length)
    total, shape = policy.mean_budget(length), (decoder.layers, 1, decoder.heads)
    if policy.allocate.given:
        raise ValueError(f"heads of {type(policy.allocate).__name__} grow as they were told: measure it with `kvjax bench memory`")
    if total >= length or not policy.when.after_prefill:
        return np.full(shape, length)
    if isinstance(policy.allocate, RoleBudgets):
        asked, n = (jnp.asarray([x], jnp.int32) for x in (total, length))
        return np.asarray(role_budgets(jnp.asarray(policy.allocate.ratio), asked, n, rounding=policy.allocate.rounding))
    if not policy.allocate.exact:
        raise ValueError(f"what {type(policy.allocate).__name__} keeps depends on the prompt: measure it with `kvjax bench memory`")
    return np.full(shape, total)


def prompt(decoder: Any, needs: frozenset, length: int, dtype: Any) -> Row:
    """The buffers `kvjax.prefill` fills; to be called while tracing, where zeros cost nothing."""
    n = bucket(length, None)[0]
    return Row(np.asarray([length], np.int32), *buffers(decoder, n, dtype, needs))


def away(decoder: Any, policy: Policy, count: np.ndarray, length: int, dtype: Any) -> np.ndarray | None:
    """Which of the slots that stay the retriever holds outside the pool, bool [L, 1, H, n]; None where it holds none.

    One layer of zeros stands for the keys of all: how many are elsewhere depends on the prompt's length alone.
    """
    if type(policy.retrieve).away is Retriever.away:
        return None
    n = bucket(length, None)[0]
    zeros = jnp.zeros((1, decoder.heads, n, decoder.head_dim), dtype)
    row = Row(np.asarray([length], np.int32), [zeros] * decoder.layers, [zeros] * decoder.layers, [])
    decided = Decided(jnp.arange(n) < jnp.asarray(count)[..., None], count, policy.mean_budget(length))
    masks = policy.retrieve.away([row], [decided], decoder)
    return None if masks is None else np.asarray(masks[0])


def planned(decoder: Any, policy: Policy, length: int, *, new: int, dtype: Any) -> Planned:
    """The cache of one prompt with room for `new` tokens, as `compress(..., headroom=new)` would allocate it; at rest with 0."""
    count = kept(decoder, policy, length)
    elsewhere = away(decoder, policy, count, length, dtype)
    here = count if elsewhere is None else count - elsewhere.sum(-1)
    headroom, align = policy.when.headroom(new, 1), math.lcm(ALIGN, policy.encode.page)
    start, capacity, slots = plan_regions(here + headroom, align=align, steps=DECODING if new else AT_REST)
    structure, fields = None, []

    def build():
        nonlocal structure
        row = prompt(decoder, policy.needs, length, dtype)
        keep = jnp.zeros((*count.shape, row.k[0].shape[2]), bool)
        regions = {name: jnp.asarray(x, jnp.int32) for name, x in dict(start=start, capacity=capacity, length=here).items()}
        cache = _cache(decoder, policy, row, slots, **regions)
        decided = Decided(keep, count, policy.mean_budget(length), elsewhere)
        state = policy.retrieve.build([row], [decided], cache, policy.encode)
        paths, structure = jax.tree_util.tree_flatten_with_path(cache.replace(retrieval=state))
        fields.extend(path[0].name for path, _ in paths)
        return [x for _, x in paths]

    found = jax.make_jaxpr(build)().out_avals
    return Planned(list(zip(fields, found, strict=True)), structure, slots, int(capacity.max()))


def _cache(decoder: Any, policy: Policy, row: Row, slots: int, **regions: Any) -> KVCache:
    """All of the cache but its retriever's state; to be called while tracing."""
    pools = empty_pools(decoder, policy, slots, row.k[0].dtype, numbered=policy.numbered)
    one = jnp.zeros(1, jnp.int32)
    return KVCache(
        **pools, **regions, budget=regions["length"], position=one, steps=one, made_by=one.astype(jnp.uint32),
        logits=jnp.zeros((1, decoder.vocab)),
        evidence=carried([row.evidence], policy.needs, policy),
        memory=jax.tree.map(lambda x: jnp.zeros((decoder.layers, 1), x.dtype), policy.merge.begin(1)),
        tails=policy.encode.empty_tails(regions["start"].shape, decoder.head_dim, row.k[0].dtype),
        placement=policy.encode.placement,
        positions=policy.encode.positions,
        codecs=policy.encode.words,
    )  # fmt: skip
