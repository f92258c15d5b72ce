"""What a sweep will cost, before it runs: tokens to prefill, steps to decode, bytes, and a time from two short measurements."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from experiments.batch_size import row_nbytes
from experiments.measure import batches, read_alike
from experiments.rows import Found, RowFile
from experiments.sweep import Plan, make
from experiments.tasks.example import block
from kvjax.policy import Policy


@dataclass(frozen=True)
class Cost:
    """Attributes:
    prompts, rows, found: prefills of prompts, rows to measure, rows in the file already.
    prefill_tokens, steps, row_steps: tokens prefilled; decode steps of a batch; the same times the rows of the batch.
    largest_bytes: full caches of the largest batch, tokens to come included. seconds: estimate without compilation.
    """

    prompts: int = 0
    rows: int = 0
    found: int = 0
    prefill_tokens: int = 0
    steps: int = 0
    row_steps: int = 0
    largest_bytes: int = 0
    seconds: float = 0.0


def estimate(lm: Any, plan: Plan, haystack: Sequence[int], rows: RowFile | Found) -> Cost:
    """The cost of what `rows` lacks.

    seconds = 2 P n / (FLOP/s of a product) + steps · P bytes / (bytes/s of a matrix-vector product) for P parameters and n tokens
    prefilled. Attention, compression and compilation come on top: a floor, within twice the truth for contexts of a few thousand.
    Prompts of a task and length are taken to be as long as the first, answers as long as they may be.
    """
    total, firsts, cells = Cost(), {}, plan.cells
    for work in plan.works(rows, traced=False):
        task, mode = plan.tasks[work.task]
        if (work.task, work.length) not in firsts:
            firsts[work.task, work.length] = make(lm, (0, work.seed, work.length, task, mode), haystack)
        first = firsts[work.task, work.length]
        most = task.rows_at_once(lm, first)
        for at in range(0, len(work.indices), most):
            prompts = len(work.indices[at : at + most])
            read = read_alike([cells[i] for i in work.cells])
            groups = [group for alike in read for group in batches(alike, most, prompts=prompts)]
            decoded = [(prompts * len(group), steps(*task.tokens(first), group[0].policy)) for group in groups]
            total = _together(lm, total, first, prompts * len(read), decoded)
    total = _plus(total, found=plan.total - total.rows)
    parameters = sum(x.size for x in jax.tree.leaves(lm.params))
    flops, bandwidth = rates(lm)
    read = parameters * lm.params["embed"]["weight"].dtype.itemsize
    return _plus(total, seconds=2 * parameters * total.prefill_tokens / flops + total.steps * read / bandwidth)


def steps(fed: int, generated: int, policy: Policy) -> int:
    """Steps of a batch that is fed and generates so many tokens: one a token generated, and one a block of those fed.

    A policy that evicts while decoding, and a storage or a retriever that goes token by token, is fed one at a time.
    """
    one_by_one = policy.retrieve.stepwise or policy.encode.stepwise
    return max(1, -(-fed // (1 if one_by_one else block(policy))) + generated)


def _together(lm: Any, cost: Cost, example: Any, prefills: int, groups: list[tuple[int, int]]) -> Cost:
    """With so many prefills of prompts more, whose cells are decoded in batches of these rows and steps."""
    return Cost(
        prompts=cost.prompts + prefills,
        rows=cost.rows + sum(rows for rows, _ in groups),
        found=cost.found,
        prefill_tokens=cost.prefill_tokens + prefills * len(example.compressed),
        steps=cost.steps + sum(count for _, count in groups),
        row_steps=cost.row_steps + sum(rows * count for rows, count in groups),
        largest_bytes=max(cost.largest_bytes, max(rows for rows, _ in groups) * row_nbytes(lm, example)),
    )


def _plus(cost: Cost, **more: float) -> Cost:
    return replace(cost, **{name: getattr(cost, name) + value for name, value in more.items()})


def rates(lm: Any) -> tuple[float, float]:
    """(FLOP/s of 512 rows times the embedding matrix, bytes/s of one row times it)."""
    w = lm.params["embed"]["weight"]
    v, e = w.shape
    product = jax.jit(lambda x, w: x @ w.T)
    many, one = jnp.ones((512, e), w.dtype), jnp.ones((2, e), w.dtype)
    return 2 * 512 * v * e / _best(product, many, w), w.nbytes / _best(product, one, w)


def _best(f: Any, *operands: Any) -> float:
    """Seconds of the faster of two warm calls."""
    jax.block_until_ready(f(*operands))
    best = math.inf
    for _ in range(2):
        began = time.perf_counter()
        jax.block_until_ready(f(*operands))
        best = min(best, time.perf_counter() - began)
    return best
