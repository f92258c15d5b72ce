"""A conversation as segments, their embeddings, and the episodes they fall into."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from kvjax.episodes.kmeans import kmeans
from kvjax.protocols import LanguageModel

#: Token ids → a vector.
Embed = Callable[[Sequence[int]], np.ndarray]


class Grouping(NamedTuple):
    """Segments, their unit embeddings, the episode of each, and the episodes' centroids."""

    segments: list[list[int]]
    vectors: Float[np.ndarray, "n e"]
    episode: Int[np.ndarray, " n"]
    centroids: Float[np.ndarray, "k e"]


def mean_embedding(lm: LanguageModel) -> Embed:
    """The mean of the model's own embedding rows of some tokens."""
    table = np.asarray(lm.params["embed"]["weight"].astype(np.float32))
    return lambda ids: table[np.asarray(ids)].mean(0)


def unit(x: np.ndarray) -> np.ndarray:
    """x of length 1, so that distances are those of cosines."""
    return x / max(float(np.linalg.norm(x)), 1e-12)


def segments_of(utterances: Sequence[Sequence[int]], size: int) -> list[list[int]]:
    """`size` utterances a segment."""

    def joined(part):
        return [token for utterance in part for token in utterance]

    return [joined(utterances[at : at + size]) for at in range(0, len(utterances), size)]


def grouped(segments: list[list[int]], embed: Embed, episodes: int, seed: int) -> Grouping:
    """Segments in at most `episodes` episodes, by k-means over unit embeddings."""
    vectors = np.stack([unit(np.asarray(embed(segment), np.float32)) for segment in segments])
    found = kmeans(vectors, min(episodes, len(segments)), jax.random.key(seed))
    return Grouping(segments, vectors, np.asarray(found.labels), np.asarray(found.centroids))


def medoids(grouping: Grouping, episode: int, count: int) -> list[int]:
    """The `count` segments of an episode nearest to its centroid by cosine, in the order of the text."""
    mine = np.flatnonzero(grouping.episode == episode)
    cosine = grouping.vectors[mine] @ unit(grouping.centroids[episode])
    return sorted(mine[np.argsort(-cosine, kind="stable")[:count]].tolist())


def nearest(centroids: Float[np.ndarray, "k e"], vector: np.ndarray) -> int:
    """argmax_i v · c_i, the centroids as k-means leaves them, not scaled to length 1; equal ones: the first."""
    return int((centroids @ np.asarray(vector, np.float32)).argmax())
