"""Headroom: whether more tokens fit the model, the policy and the cache, and slots for them."""

from collections.abc import Sequence

import jax
import numpy as np

from kvjax.budget import check_budget, slots_of
from kvjax.cache.kv_cache import KVCache
from kvjax.cache.layout import copied, decodes_as_it_is, resize
from kvjax.cache.parts import reserved
from kvjax.policy import Policy
from kvjax.protocols import LanguageModel
from kvjax.types import DECODING, power_of_two


def check_cache(lm: LanguageModel, cache: KVCache, policy: Policy, new_tokens: int, *, block: int = 1) -> None:
    """Raise TypeError or ValueError where `new_tokens` more of this policy, fed `block` at a time, cannot follow the cache."""
    if not isinstance(policy, Policy):
        raise TypeError(f"expected the policy the cache was made with; got {policy!r}")
    if not isinstance(cache, KVCache):
        raise TypeError(f"expected a KVCache from kvjax.compress.run; got {type(cache).__name__}")
    if cache.start.shape[0] != lm.decoder.layers or cache.start.shape[2] != lm.decoder.heads:
        raise ValueError(
            f"the cache has {cache.start.shape[0]} layers of {cache.start.shape[2]} KV heads, "
            f"the model {lm.decoder.layers} of {lm.decoder.heads}: it was made by another model"
        )
    if cache.logits.shape[1] != lm.decoder.vocab:
        raise ValueError(f"the cache is of a vocabulary of {cache.logits.shape[1]}, the model has {lm.decoder.vocab}")
    if policy.when.decoding and not cache.evidence:
        raise ValueError("this policy evicts while decoding, but the cache was compressed with one that does not: compress with it")
    if policy.when.decoding:
        _check_state(cache, policy)
    if cache.placement != policy.encode.placement:
        raise ValueError(f"the cache holds values {cache.placement}, the policy wants {policy.encode.placement}: compress with it")
    if not policy.encode.fits(cache, lm.decoder.head_dim):
        raise ValueError(f"the cache does not hold slots as the policy's {policy.encode} stores them: compress with it")
    if cache.positions != policy.encode.positions:
        raise ValueError(f"the cache holds keys {cache.positions}, the policy wants {policy.encode.positions}: compress with it")
    text, slots = int(np.asarray(cache.position).max()) + new_tokens, _fullest(cache, policy, new_tokens, block).max()
    longest = policy.encode.positions.longest(text, int(slots))
    if longest > lm.decoder.max_positions:
        limit = lm.decoder.max_positions
        raise ValueError(f"{longest} tokens would exceed the model's context of {limit}: ask for fewer new tokens")


def _check_state(cache: KVCache, policy: Policy) -> None:
    """Raise ValueError where the cache carries another scorer's evidence or state."""
    wanted = {need.key for need in policy.decode_score.needs if need.carried}
    state = jax.tree.structure(policy.decode_score.init((1, 1, 1)))
    held = cache.parts[0].state if cache.parts else cache.state
    if set(cache.evidence[0].data) != wanted or jax.tree.structure(held.score) != state:
        raise ValueError(
            f"the cache carries what another scorer reads ({', '.join(cache.evidence[0].data) or 'no evidence'}), the policy's "
            f"{type(policy.decode_score).__name__} goes on with {', '.join(sorted(wanted)) or 'its state'}: compress with it"
        )


def _fullest(cache: KVCache, policy: Policy, new_tokens: int, block: int) -> np.ndarray:
    """Most slots each region holds while `new_tokens` more come, `block` at a time: int [L, B, H]."""
    return policy.when.fullest(cache.lengths, np.asarray(cache.budget), new_tokens, block)


def make_room(
    cache: KVCache, policy: Policy, new_tokens: int, *, block: int = 1, pool_budget: int | float | None = None
) -> tuple[KVCache, int]:
    """A cache of its own with room for `new_tokens` more a head, fed `block` at a time, and the slots a region is padded to.

    Nothing moves where the room is there (`compress(headroom=...)`). The padding is 0 where nothing needs a static bound.
    """
    capacity = _fullest(cache, policy, new_tokens, block)
    widest, slots = int(capacity.max()), 0
    if pool_budget is not None:
        check_budget(pool_budget)
        most = slots_of(pool_budget, int(np.asarray(cache.position).max())) + new_tokens
        widest, slots = max(widest, most), (most + cache.align) * capacity.size
    asked = policy.encode.room(cache, capacity)
    has_room = _has_room(cache, policy, asked, slots)
    return copied(cache) if has_room else resize(cache, asked, slots, steps=DECODING), power_of_two(widest) if policy.padded else 0


def _has_room(cache: KVCache, policy: Policy, asked: np.ndarray | Sequence[np.ndarray], reserve_slots: int) -> bool:
    """Whether the pools can stay as they are. Where heads trade slots, a region is of just the size that was asked for."""
    parts = [(cache, asked, reserve_slots)]
    if cache.parts:
        parts = [(part, x, reserved(part, cache, reserve_slots)) for part, x in zip(cache.parts, asked, strict=True)]
    grows = not policy.when.decoding
    return not policy.when.reallocate and all(decodes_as_it_is(*part, grows=grows) for part in parts)
