"""One cache an episode, and the one a query belongs to."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from kvjax.cache.kv_cache import KVCache
from kvjax.checks import brief, check_known
from kvjax.decode.extend import extend
from kvjax.decode.loop import Decoded, decode
from kvjax.episodes.bounded import bounded_prefill
from kvjax.episodes.layer_budgets import layer_budgets
from kvjax.episodes.segments import Embed, Grouping, grouped, mean_embedding, medoids, nearest, segments_of
from kvjax.policy import Policy
from kvjax.protocols import LanguageModel


@dataclass(frozen=True)
class Episodes:
    """A conversation after `build`: nothing changes it.

    Attributes:
        caches: one an episode, of the whole conversation.   grouping: segments and what episode each belongs to.
        medoids: segments that stand for each episode.   embed: what queries are embedded with.
    """

    caches: list[KVCache] = field(repr=False)
    grouping: Grouping = field(repr=False)
    medoids: list[list[int]]
    embed: Embed = field(repr=False)

    def nearest(self, query: Sequence[int]) -> int:
        """The episode a query belongs to."""
        return nearest(self.grouping.centroids, self.embed(query))

    @property
    def nbytes(self) -> int:
        """Bytes of all caches."""
        return sum(cache.nbytes for cache in self.caches)


def build(
    lm: LanguageModel, utterances: Sequence[Sequence[int]], *, budget: int, episodes: int = 4, size: int = 4, count: int = 4,
    chunk: int = 2048, instruction: Sequence[int] = (), sens: Float[np.ndarray, " l"] | None = None, power: float = 1.1,
    flattened: bool = True, embed: Embed | None = None, seed: int = 42,
) -> Episodes:  # fmt: skip
    """Cluster a conversation's segments, and read it once for every episode into a cache of `budget` slots per KV head on average.

    Args:
        lm: a language model.   utterances: token ids of each.
        budget: mean slots per KV head of each cache.   episodes: caches, fewer where there are fewer segments.
        size: utterances of a segment.   count: medoid segments in an episode's patch.
        chunk: tokens read before slots are evicted.   instruction: token ids in front of the medoids in a patch.
        sens: `sensitivity` of each layer; None: all layers get the same.   power: how much it counts.
        flattened: whether the heads of a layer share its slots.
        embed: token ids → a vector; None: the mean of the model's embedding rows.   seed: of k-means.

    Raises:
        ValueError: no utterances or an empty one, a number below 1, a table of another number of layers.
    """
    rows = check_known(utterances, lm.decoder.vocab) if len(utterances) else []
    if not rows or not all(rows):
        raise ValueError("a conversation is a list of at least one utterance, each of at least one token")
    if min(budget, episodes, size, count, chunk) < 1:
        raise ValueError(f"budget, episodes, size, count and chunk are at least 1; got {(budget, episodes, size, count, chunk)}")
    layers = lm.decoder.layers
    if sens is not None and np.shape(sens) != (layers,):
        raise ValueError(f"sens= is one number for each of {layers} layers; got shape {np.shape(sens)}")
    budgets = np.full(layers, budget) if sens is None else layer_budgets(np.asarray(sens), budget, power)
    embed = mean_embedding(lm) if embed is None else embed
    grouping = grouped(segments_of(rows, size), embed, episodes, seed)
    chosen = [medoids(grouping, i, count) for i in range(len(grouping.centroids))]
    ids = [token for row in rows for token in row]
    patches = [[*instruction, *(token for i in own for token in grouping.segments[i])] or ids[-1:] for own in chosen]
    caches = [bounded_prefill(lm, ids, patch, budgets, chunk=chunk, flattened=flattened) for patch in patches]
    return Episodes(caches=caches, grouping=grouping, medoids=chosen, embed=embed)


def answer(
    lm: LanguageModel, episodes: Episodes, query: Sequence[int], *, max_new_tokens: int = 64, stop: object = None
) -> Decoded:
    """A query read behind the cache of its episode, and what follows it; the caches stay as they are.

    Raises:
        TypeError, ValueError: a query that is no row of token ids, of at least one.
    """
    rows, full = check_known(query, lm.decoder.vocab), Policy()
    if len(rows) != 1 or not rows[0]:
        raise ValueError(f"a query is one row of token ids, at least one; got {brief(query)}")
    cache = extend(lm, episodes.caches[episodes.nearest(rows[0])], rows, full).cache
    return decode(lm, cache, full, max_new_tokens=max_new_tokens, stop=stop)
