"""Measuring the study's cells: a batch of prompts is read, compressed and decoded a few times, and its bytes are counted."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import jax

import kvjax
from experiments.full_cache import full_nbytes
from experiments.memory_maps import forget_programs
from experiments.other_work import OtherWork
from experiments.policies import Named
from experiments.rows import Found, Row, RowFile
from experiments.study.cell import Cell
from experiments.study.live import Peak
from experiments.study.traffic import traffic
from experiments.tasks import needle
from models.language_model import LanguageModel

#: The prompts: needles asked for after compression, the first ones of seed 0.
MODE, SEED = "unseen", 0


@dataclass(frozen=True)
class Plan:
    """What the study measures: every policy at every length and batch size.

    Attributes:
        policies: the systems.   lengths: tokens of a prompt.   batches: requests that decode together.
        new: tokens generated for each.   rounds: counted, after one that compiles.
    """

    policies: tuple[Named, ...]
    lengths: tuple[int, ...]
    batches: tuple[int, ...]
    new: int
    rounds: int

    def cells(self) -> Iterator[tuple[Named, int, int]]:
        """(policy, length, batch), the short and small ones first."""
        for length in self.lengths:
            for batch in self.batches:
                yield from ((named, length, batch) for named in self.policies)

    def missing(self, rows: Found) -> list[tuple[Named, int, int]]:
        """Those that `rows` lacks."""
        return [cell for cell in self.cells() if self._key(*cell) not in rows]

    def _key(self, named: Named, length: int, batch: int) -> tuple:
        """As `experiments.study.cell.NAMES`."""
        return needle.NAME, MODE, length, named.policy.in_full(), named.budget, SEED, batch, self.new


def run(
    lm: LanguageModel, plan: Plan, haystack: Sequence[int], rows: RowFile, common: Row, *,
    done: Callable[[int], None] = lambda count: None,
) -> int:  # fmt: skip
    """Measure every cell that `rows` lacks and append it; returns how many were measured.

    Args:
        haystack: ids that prompts are cut from.   rows: the open file.   common: what all rows repeat.   done: told of each row.

    Raises:
        ValueError: a prompt that does not fit the model, or a policy that fits neither; before anything is measured.
        OSError: a row cannot be written.
    """
    missing = plan.missing(rows)
    prompts = {length: _prompts(lm, length, max(plan.batches), haystack) for _, length, _ in missing}
    for named, length, _ in missing:
        _check(lm, plan, named, prompts[length])
    for named, length, batch in missing:
        cell = measure(lm, named, prompts[length][:batch], length=length, new=plan.new, rounds=plan.rounds)
        rows.append(common | {"task": needle.NAME, "mode": MODE, "seed": SEED} | cell.row())
        done(1)
    return len(missing)


def measure(lm: LanguageModel, named: Named, prompts: Sequence[Sequence[int]], *, length: int, new: int, rounds: int) -> Cell:
    """One cell: `rounds` rounds of the batch, after one that compiles and in which bytes are counted."""
    forget_programs()
    watch, firsts, steps = Peak(lm.nbytes), [], []
    out, _ = _round(lm, named.policy, prompts, new, look=watch.look)
    crossed, held = traffic(out.cache, new), (out.cache.nbytes, out.cache.host_nbytes)
    del out
    others = OtherWork()
    for _ in range(rounds):
        out, first = _round(lm, named.policy, prompts, new)
        firsts.append(first)
        steps.append(out.info["ms_per_token"] / 1e3)
        del out
    peak, counted = watch.found
    return Cell(
        model=lm.name, dtype=str(lm.params["embed"]["weight"].dtype), policy=named.name, policy_repr=named.policy.in_full(),
        budget=named.budget, length=length, tokens=max(map(len, prompts)), batch=len(prompts), new=new,
        slot_bytes=full_nbytes(lm, 1), cache_bytes=held[0], host_bytes=held[1], moved_bytes=crossed.moved,
        asked_bytes=crossed.asked, peak_bytes=peak, peak_from=counted, first_seconds=tuple(firsts), step_seconds=tuple(steps),
        others=others.cores(),
    )  # fmt: skip


def _round(
    lm: LanguageModel, policy: kvjax.Policy, prompts: Sequence[Sequence[int]], new: int, look: Callable = lambda: None
) -> tuple[kvjax.Decoded, float]:
    """Serve the batch once: what decoding gave, and the seconds until its first tokens could be told."""
    began = time.perf_counter()
    pre = kvjax.second_pass(lm, kvjax.prefill(lm, [list(ids) for ids in prompts], needs=policy), policy)
    cache = jax.block_until_ready(kvjax.compress(pre, policy, headroom=new))
    first = time.perf_counter() - began
    look()
    del pre
    out = kvjax.decode(lm, cache, policy, max_new_tokens=new, stop=())
    look()
    return out, first


def _prompts(lm: LanguageModel, length: int, count: int, haystack: Sequence[int]) -> list[tuple[int, ...]]:
    """The first prompts of a length, without their questions."""
    return [found.compressed for found in needle.examples(lm, length, count, SEED, haystack=haystack, mode=MODE)]


def _check(lm: LanguageModel, plan: Plan, named: Named, prompts: Sequence[Sequence[int]]) -> None:
    """Raise ValueError for a context that the model, or a prompt that the policy cannot hold."""
    most = max(map(len, prompts))
    if most + plan.new > lm.decoder.max_positions:
        raise ValueError(f"{most} tokens and {plan.new} new ones are more than the model's {lm.decoder.max_positions} positions")
    for ids in prompts:
        try:
            named.policy.check(lm.decoder, len(ids))
        except ValueError as error:
            raise ValueError(f"{named.name} at budget {named.budget}: {error}") from error
