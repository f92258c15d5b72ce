"""Room in a sharded cache for tokens to come, and whether model, policy and cache belong together."""

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Int

from kvjax.cache.mesh import sizes
from kvjax.cache.sharded import ShardedCache
from kvjax.cache.sharded_layout import resize_sharded
from kvjax.decode.headroom import check_form, check_heads, check_rows, room_of
from kvjax.policy import Policy
from kvjax.protocols import LanguageModel
from kvjax.retrieve import FullAttention
from kvjax.types import power_of_two
from kvjax.weights_mark import check_mark


def check_sharded(
    lm: LanguageModel, cache: ShardedCache, policy: Policy, new_tokens: int | Int[np.ndarray, " b"], *, block: int = 1
) -> tuple[PartitionSpec, ...]:
    """Where each parameter lies on the cache's mesh, once `new_tokens` more of each row can follow the cache.

    Raises:
        TypeError, ValueError: as `check_cache`; a model on other devices; a policy that reads all heads of a layer together.
    """
    check_heads(lm.decoder, policy, *(cache.shape[i] for i in (0, 2)))
    if sizes(cache.mesh)[1] > 1:
        check_heads_apart(policy)
    check_form(lm.decoder, cache.one, policy)
    check_mark(lm, cache.numbers("made_by"))
    position, new = cache.numbers("position")[:, 0].reshape(-1), cache.by_group(np.broadcast_to(new_tokens, cache.shape[1]))
    regions = (_by_row(cache.numbers(name)) for name in ("length", "budget"))
    check_rows(lm.decoder, policy, position, *regions, new, block=block)
    where = [x.sharding for x in jax.tree.leaves(lm.params)]
    if not all(isinstance(x, NamedSharding) and x.mesh == cache.mesh for x in where):
        raise ValueError("the model's weights are not on the cache's mesh: decode with models.shard(lm, cache.mesh)")
    return tuple(x.spec for x in where)


def _by_row(x: Int[np.ndarray, "g n l b h"]) -> Int[np.ndarray, "l rows heads"]:
    """Numbers of every device's regions by row and head, as the groups of devices hold them."""
    groups, devices, layers, b, h = x.shape
    return x.transpose(2, 0, 3, 1, 4).reshape(layers, groups * b, devices * h)


def check_heads_apart(policy: Policy) -> None:
    """Raise ValueError for a policy whose decoding reads, or codes, more than one head at a time, or reads tables by head."""
    tables = [x for x in jax.tree.leaves((policy.retrieve, policy.encode)) if np.ndim(x)]
    parted = policy.encode.parted or any(codec.across_heads for codec in policy.encode.codecs)
    if type(policy.retrieve) is not FullAttention or policy.when.decoding or parted or tables:
        raise ValueError(
            "with KV heads on several devices each head is read by itself, and coded by itself, and nothing is evicted while "
            "decoding: use retrieve=FullAttention(), when=AfterPrefill() and codecs of single heads without tables, or "
            f"kvjax.mesh(rows=...); got {policy!r}"
        )


def make_sharded_room(
    cache: ShardedCache, policy: Policy, new_tokens: int, *, block: int = 1, pool_budget: int | float | None = None
) -> tuple[ShardedCache, int]:
    """`make_room` of a sharded cache: the cache with room, and the slots a region is padded to."""
    capacity = policy.fullest(cache.numbers("length"), cache.numbers("budget"), new_tokens, block)
    one, longest = cache.one, int(cache.numbers("position").max())
    most, slots = room_of(pool_budget, longest, new_tokens, align=one.align, regions=one.start.size)
    return resize_sharded(cache, capacity, slots), power_of_two(max(int(capacity.max()), most)) if policy.padded else 0
