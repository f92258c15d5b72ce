"""A text read chunk by chunk in bounded memory: after each chunk, what a patch behind it looks at stays."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from kvjax.cache.kv_cache import KVCache, SlotState
from kvjax.cache.layout import plan_regions
from kvjax.compress.run import compress
from kvjax.decode.extend import extend
from kvjax.evidence import OverPrompt
from kvjax.evidence.reduce import Max
from kvjax.policy import Policy
from kvjax.protocols import LanguageModel
from kvjax.read import prefill
from kvjax.schedule import WhenFull
from kvjax.score.highest import HighestRow

#: More slots than any head has: the probe's scorer observes, and nothing is evicted.
_NEVER = 1 << 30


def probe_policy(budget: int) -> Policy:
    """Scores slots by the hardest look at them among what was held before, and evicts nothing by itself."""
    return Policy(score=HighestRow(OverPrompt(Max())), when=WhenFull(_NEVER, after_prefill=False), budget=budget)


def bounded_prefill(
    lm: LanguageModel, ids: Sequence[int], patch: Sequence[int], budgets: Int[np.ndarray, " l"], *, chunk: int,
    flattened: bool = True,
) -> KVCache:  # fmt: skip
    """A cache of Σ budgets · H slots of a text, never of more than a chunk and the patch beyond it.

    Args:
        lm: a language model.   ids: the text.   patch: what is read behind every chunk, and leaves nothing but its looks.
        budgets: mean slots per KV head of each layer.   chunk: tokens read before slots are evicted.
        flattened: whether the heads of a layer share its slots, the highest scores first; else each gets as many.

    What is kept decodes under `kvjax.methods.full()`.
    Source: EpiCache, arXiv 2509.17396, section 3.3.
    """
    policy, plain, ids = probe_policy(int(budgets.max())), Policy(), list(ids)
    cache = compress(prefill(lm, ids[:chunk], needs=policy), policy)
    for at in range(chunk, len(ids) + chunk, chunk):
        if (cache.lengths.sum((1, 2)) > budgets * cache.start.shape[2]).any():
            scores = probed(lm, cache, patch, policy)
            cache = cut(scores, kept(scores, budgets, flattened))
        if ids[at : at + chunk]:
            cache = extend(lm, cache, ids[at : at + chunk], plain).cache
    return cache.replace(state=SlotState(), evidence=())


def probed(lm: LanguageModel, cache: KVCache, patch: Sequence[int], policy: Policy) -> KVCache:
    """The cache with a score for each slot, `cache.state.score`; the patch itself is gone again.

    u_j = max over query heads and the patch's queries of softmax over the slots held before the patch: no key of the patch takes
    a share. What is held counts as a prompt, and the patch as what follows it.
    """
    fresh = cache.replace(state=jax.tree.map(jnp.zeros_like, cache.state), steps=jnp.zeros_like(cache.steps))
    read = extend(lm, fresh, list(patch), policy).cache
    return read.replace(length=cache.length, position=cache.position, steps=cache.steps, logits=cache.logits)


def kept(cache: KVCache, budgets: Int[np.ndarray, " l"], flattened: bool) -> Bool[np.ndarray, " s"]:
    """Which slots of a scored cache stay: budgets · H a layer, flattened or head by head; every head keeps its best one.

    Equal scores: the lower head, then the lower slot.
    """
    score, stays = np.asarray(cache.state.score), np.zeros(cache.slots, bool)
    start, length = np.asarray(cache.start), cache.lengths
    for layer, budget in enumerate(budgets):
        for row in range(start.shape[1]):
            heads = [np.arange(s, s + n) for s, n in zip(start[layer, row], length[layer, row], strict=True)]
            for slots in _chosen(heads, score, int(budget), flattened):
                stays[slots] = True
    return stays


def _chosen(heads: list[np.ndarray], score: Float[np.ndarray, " s"], budget: int, flattened: bool) -> list[np.ndarray]:
    """The slots of one layer's heads that stay."""

    def best(slots, u, count):
        return slots[np.argsort(-u, kind="stable")[:count]]

    if not flattened:
        return [best(slots, score[slots], budget) for slots in heads]
    u = [score[slots].astype(np.float64) for slots in heads]
    for own in u:
        own[own.argmax()] = np.inf
    return [best(np.concatenate(heads), np.concatenate(u), max(budget * len(heads), len(heads)))]


def cut(cache: KVCache, stays: Bool[np.ndarray, " s"]) -> KVCache:
    """The cache with these slots alone, in the order they stood in, in a pool of their size."""
    cache = cache.numbered()
    start, length = np.asarray(cache.start).reshape(-1), cache.lengths.reshape(-1)
    mine = [at + np.flatnonzero(stays[at : at + n]) for at, n in zip(start, length, strict=True)]
    counts = np.array([len(slots) for slots in mine]).reshape(cache.start.shape)
    to, capacity, slots = plan_regions(counts, align=cache.align)
    index = np.zeros(slots, np.int32)
    for at, old in zip(to.reshape(-1), mine, strict=True):
        index[at : at + len(old)] = old
    pools = jax.tree.map(lambda x: jnp.take(x, jnp.asarray(index), axis=0), cache.pools)
    return cache.replace(**pools, start=jnp.asarray(to), length=jnp.asarray(counts, jnp.int32), capacity=jnp.asarray(capacity))
