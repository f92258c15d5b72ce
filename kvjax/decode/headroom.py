"""Headroom: whether more tokens fit the model, the policy and the cache, and slots for them."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int, PyTree

from kvjax.budget import check_budget, slots_of
from kvjax.cache.kv_cache import KVCache
from kvjax.cache.layout import copied, decodes_as_it_is, resize
from kvjax.cache.parts import reserved
from kvjax.cache.retriever_state import RetrieverState
from kvjax.cache.sharded import check_unsharded
from kvjax.checks import brief
from kvjax.policy import Policy
from kvjax.protocols import Decoder, LanguageModel
from kvjax.tree_form import form_of
from kvjax.types import DECODING, power_of_two
from kvjax.weights_mark import check_mark


def check_cache(
    lm: LanguageModel, cache: KVCache, policy: Policy, new_tokens: int | Int[np.ndarray, " b"], *, block: int = 1
) -> None:  # fmt: skip
    """Raise TypeError or ValueError where `new_tokens` more of each row, fed `block` at a time, cannot follow the cache."""
    check_unsharded(cache)
    check_heads(lm.decoder, policy, cache.start.shape[0], cache.start.shape[2])
    check_form(lm.decoder, cache, policy)
    check_mark(lm, np.asarray(cache.made_by))
    check_rows(lm.decoder, policy, np.asarray(cache.position), cache.lengths, np.asarray(cache.budget), new_tokens, block=block)


def check_policy(policy: object) -> None:
    """Raise TypeError for what is no policy."""
    if not isinstance(policy, Policy):
        raise TypeError(f"expected the policy the cache was made with, such as kvjax.methods.snapkv(); got {brief(policy)}")


def check_heads(model: Decoder, policy: Policy, layers: int, heads: int) -> None:
    """Raise TypeError or ValueError for what is no policy, and for a cache of another model."""
    check_policy(policy)
    if layers != model.layers or heads != model.heads:
        raise ValueError(
            f"the cache has {layers} layers of {heads} KV heads, the model {model.layers} of {model.heads}: it was made by another "
            "model"
        )


def check_form(model: Decoder, cache: KVCache, policy: Policy) -> None:
    """Raise ValueError where the cache does not hold what the policy goes on with."""
    if cache.logits.shape[1] != model.vocab:
        raise ValueError(f"the cache is of a vocabulary of {cache.logits.shape[1]}, the model has {model.vocab}")
    if policy.when.decoding and not cache.evidence:
        raise ValueError("this policy evicts while decoding, but the cache was compressed with one that does not: compress with it")
    policy.check_stages()
    if policy.when.decoding:
        _check_state(cache, policy)
        _check_merged(cache, policy)
    if cache.placement != policy.encode.placement:
        raise ValueError(f"the cache holds values {cache.placement}, the policy wants {policy.encode.placement}: compress with it")
    if not policy.encode.fits(cache, model.head_dim):
        raise ValueError(f"the cache does not hold slots as the policy's {policy.encode} stores them: compress with it")
    if cache.positions != policy.encode.positions:
        raise ValueError(f"the cache holds keys {cache.positions}, the policy wants {policy.encode.positions}: compress with it")
    _check_memory(cache, policy)
    _check_outside(cache, policy)
    policy.retrieve.check_cache(cache)


def check_rows(
    model: Decoder, policy: Policy, position: Int[np.ndarray, " b"], length: Int[np.ndarray, "l b h"],
    budget: Int[np.ndarray, "l b h"], new_tokens: int | Int[np.ndarray, " b"], *, block: int,
) -> None:  # fmt: skip
    """`check_positions` of every row, by the tokens that come to it alone."""
    for row, new in enumerate(np.broadcast_to(new_tokens, position.shape).tolist()):
        own = slice(row, row + 1)
        slots = policy.fullest(length[:, own], budget[:, own], new, block).max()
        check_positions(model, policy, int(position[row]) + new, int(slots), new)


def check_positions(model: Decoder, policy: Policy, text: int, slots: int, new: int) -> None:
    """Raise ValueError where a text of so many tokens, or regions of so many slots, `new` among them, would exceed the context."""
    longest, context = policy.encode.positions.longest, model.max_positions
    if longest(text, slots) > context:
        none_fits = longest(text - new + 1, slots - new + 1) > context
        advice = "no new token fits: shorten the prompt" if none_fits else "ask for fewer new tokens"
        raise ValueError(f"{longest(text, slots)} tokens would exceed the model's context of {context}: {advice}")


def _check_state(cache: KVCache, policy: Policy) -> None:
    """Raise ValueError where the cache carries another scorer's evidence or state."""
    wanted = {need.key for need in policy.decode_score.needs if need.carried}
    state = form_of(policy.decode_score.init((1, 1, 1)), 3)
    held = cache.parts[0].state if cache.parts else cache.state
    if set(cache.evidence[0].data) != wanted or form_of(held.score, 1) != state:
        raise ValueError(
            f"the cache carries what another scorer reads ({', '.join(cache.evidence[0].data) or 'no evidence'}), the policy's "
            f"{type(policy.decode_score).__name__} goes on with {', '.join(sorted(wanted)) or 'its state'}: compress with it"
        )


def _check_merged(cache: KVCache, policy: Policy) -> None:
    """Raise ValueError where the cache carries what another merger goes on with."""
    own, merge = cache.parts[0] if cache.parts else cache, policy.merge
    same = form_of(own.state.merge, 1) == form_of(merge.init((1, 1, 1)), 3) and (own.bias is not None) == merge.biased
    remembers = _names(own.memory) == merge.keeps if merge.keeps else form_of(own.memory, 2) == form_of(merge.begin(1), 1)
    if not same or not remembers:
        raise ValueError(
            f"the cache carries what another merger keeps of slots and rows, {type(merge).__name__} goes on with its own: compress "
            "with it"
        )


def _check_memory(cache: KVCache, policy: Policy) -> None:
    """Raise ValueError where the policy does not read what a memory holds of tokens that left, or reads what none holds."""
    held, read = _names(cache.memory), policy.encode.reads_memory | policy.retrieve.reads_memory
    own = policy.merge.keeps | _names(policy.merge.begin(1)) if held else frozenset()
    if not read <= held <= read | own:
        raise ValueError(
            f"the cache keeps {', '.join(sorted(held)) or 'nothing'} of tokens that left, the policy reads "
            f"{', '.join(sorted(read)) or 'none of it'}: compress with it"
        )


def _names(memory: PyTree) -> frozenset[str]:
    """What a memory holds for other stages to read."""
    return frozenset(memory) if isinstance(memory, Mapping) else frozenset()


def _check_outside(cache: KVCache, policy: Policy) -> None:
    """Raise ValueError where a retriever's state holds tokens outside the pool which the policy's does not read."""
    state, reader = cache.retrieval, policy.retrieve
    if not isinstance(state, RetrieverState) or reader.reads(state):
        return
    outside = int(np.sum(np.asarray(state.elsewhere)))
    if outside:
        raise ValueError(
            f"the cache holds {outside} tokens outside its pool ({type(state).__name__}), which {type(reader).__name__} does not "
            "read: decode with the policy that it was compressed with, or compress with this one"
        )


def make_room(
    cache: KVCache, policy: Policy, new_tokens: int, *, block: int = 1, pool_budget: int | float | None = None
) -> tuple[KVCache, int]:
    """A cache of its own with room for `new_tokens` more a head, fed `block` at a time, and the slots a region is padded to.

    Nothing moves where the room is there (`compress(headroom=...)`). The padding is 0 where nothing needs a static bound.
    """
    capacity = policy.fullest(cache.lengths, np.asarray(cache.budget), new_tokens, block)
    most, slots = room_of(pool_budget, int(np.asarray(cache.position).max()), new_tokens, align=cache.align, regions=capacity.size)
    widest = max(int(capacity.max()), most)
    asked = policy.encode.room(cache, capacity)
    has_room = _has_room(cache, policy, asked, slots)
    return copied(cache) if has_room else resize(cache, asked, slots, steps=DECODING), power_of_two(widest) if policy.padded else 0


def room_of(pool_budget: int | float | None, longest: int, new_tokens: int, *, align: int, regions: int) -> tuple[int, int]:
    """(slots of a region, slots of the pool) that a budget asks for with `new_tokens` more; nothing without one.

    Raises:
        ValueError: what is no budget.
    """
    if pool_budget is None:
        return 0, 0
    check_budget(pool_budget)
    most = slots_of(pool_budget, longest) + new_tokens
    return most, (most + align) * regions


def _has_room(cache: KVCache, policy: Policy, asked: np.ndarray | Sequence[np.ndarray], reserve_slots: int) -> bool:
    """Whether the pools can stay as they are. Where heads trade slots, a region is of just the size that was asked for."""
    parts = [(cache, asked, reserve_slots)]
    if cache.parts:
        parts = [(part, x, reserved(part, cache, reserve_slots)) for part, x in zip(cache.parts, asked, strict=True)]
    grows = not policy.when.decoding
    return not policy.when.reallocate and all(decodes_as_it_is(*part, grows=grows) for part in parts)
