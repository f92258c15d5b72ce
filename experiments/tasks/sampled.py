"""Tasks whose score is the mean over several sampled answers, for answers that reason before they end."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

import kvjax
from experiments.tasks.answering import AnsweringInParts, texts_of
from experiments.tasks.example import Example, Read, block
from experiments.traces import of_retrieval


@dataclass(frozen=True)
class SampledAnswering(AnsweringInParts):
    """As `AnsweringInParts`, with `samples` answers of each row and the mean of every figure.

    Sample i of prompt p is drawn with the key `jax.random.fold_in(jax.random.key(p), i)`, the same for all policies, each row for
    itself: what an answer is does not depend on the cells that are decoded beside it.
    """

    samples: int = 8
    sampler: kvjax.Sample = field(default_factory=lambda: kvjax.Sample(temperature=0.6, top_p=0.95))

    def measure(self, lm: Any, cache: Any, policy: Any, reads: Sequence[Read]) -> list[dict[str, Any]]:
        """A dict a row: means of score and figures, the scores and answers of the samples, tokens read, what pivots saw last."""
        examples, rows = [read.example for read in reads], len(reads)
        example = examples[0]
        heard = kvjax.extend(lm, cache, [list(example.fed)] * rows, policy, block=block(policy)).cache
        graded: list[list[dict[str, Any]]] = [[] for _ in range(rows)]
        key, read = jax.random.key(example.index), len(example.fed)
        for sample in range(self.samples):
            keys = jnp.stack([jax.random.fold_in(key, sample)] * rows)
            how = dict(sampler=self.sampler, key=keys, stop=example.stop)
            out = kvjax.decode(lm, heard, policy, max_new_tokens=example.new_tokens, **how)
            read += int(out.lengths.max())
            for found, text in zip(graded, texts_of(lm, out, examples), strict=True):
                found.append(self.graded(text, example.references))
        return [_means(found) | {"read": read} | of_retrieval(out.cache, policy, row) for row, found in enumerate(graded)]

    def alike(self, example: Example) -> Hashable:
        """A prompt by itself: its samples have a key of their own."""
        return example.index

    def tokens(self, example: Example) -> tuple[int, int]:
        """The question is fed once, and `samples` answers are generated."""
        return len(example.fed), self.samples * example.new_tokens


def _means(found: list[dict[str, Any]]) -> dict[str, Any]:
    figures = [name for name in found[0] if name != "answer"]
    means = {name: sum(row[name] for row in found) / len(found) for name in figures}
    return means | {"scores": [row["score"] for row in found], "answers": [row["answer"] for row in found]}
