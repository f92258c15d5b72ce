"""Perplexity of a held-back continuation: nats per token of the 256 tokens that follow a compressed prefix.

    nll = -1/256 * sum_i log p(x_i | compressed x_<n, x_n .. x_{i-1})

The first token is predicted by the prefill itself, which no compression touches, as in any decoding.
Prompt i of a seed and length starts where `random.Random(f"{seed}/ppl/{length}/{i}")` says.
"""

import random
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32

import kvjax
from experiments.tasks.example import Example, Read, block
from experiments.traces import of_retrieval

NAME = "ppl"
MODES = ("-",)
HELD_BACK = 256


def examples(
    lm: Any, length: int, count: int, seed: int, *, haystack: Sequence[int], mode: str = "-", start: int = 0
) -> Iterator[Example]:
    """Stretches `start` .. `count - 1` of the haystack: a context of `length` tokens and the 256 after it.

    Raises:
        ValueError: the haystack is shorter than a stretch.
    """
    del lm
    last = len(haystack) - length - HELD_BACK - 1
    if last < 1 or length < 1:
        raise ValueError(f"the haystack has {len(haystack)} tokens, not enough for {length} + {HELD_BACK}: --text")
    for index in range(start, count):
        begin = random.Random(f"{seed}/ppl/{length}/{index}").randrange(0, last)
        middle = begin + length
        yield Example(
            task=NAME,
            mode=mode,
            length=length,
            index=index,
            context=tuple(haystack[begin:middle]),
            answer=tuple(haystack[middle : middle + HELD_BACK]),
            meta={"begin": begin},
        )


def measure(lm: Any, cache: Any, policy: Any, reads: Sequence[Read]) -> list[dict[str, Any]]:
    """Nats per token of each prompt's answer after its row of `cache`, all its tokens fed at once.

    Returns:
        one dict a row: nll and what pivots saw.
    """
    answers = [read.example.answer for read in reads]
    known = [list(answer[:-1]) for answer in answers]
    extended = kvjax.extend(lm, cache, known, policy, return_logits=True, block=block(policy))
    rows = zip(reads, extended.logits, answers, strict=True)
    grades = [{"nll": float(_nats(read.logits, row, jnp.asarray(answer, jnp.int32)))} for read, row, answer in rows]
    return [grade | of_retrieval(extended.cache, policy, row) for row, grade in enumerate(grades)]


def alike(example: Example) -> Hashable:
    """Answers of one length are fed together."""
    return len(example.answer)


def tokens(example: Example) -> tuple[int, int]:
    """All of the answer but its last token is fed, and nothing generated."""
    return len(example.answer) - 1, 0


def rows_at_once(lm: Any, example: Example) -> int:
    """Cells fed as one batch: as many as keep their logits, float32 [rows, 256, v], within 1 GiB."""
    del example
    return max(1, 2**30 // (4 * HELD_BACK * lm.decoder.vocab))


@jax.jit
def _nats(first: Float32[Array, " v"], rest: Float32[Array, "t v"], targets: Int32[Array, " n"]) -> Float32[Array, ""]:
    logits = jnp.concatenate([first[None], rest])
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[:, None], axis=1).mean()
