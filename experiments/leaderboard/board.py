"""Result rows -> the places of a leaderboard: a method at a budget on a task, with its score, its cost and how to measure it."""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import kvjax
from experiments.leaderboard.cells import slots
from experiments.leaderboard.front import front
from experiments.leaderboard.kinds import kind
from experiments.report.comparison import Comparison, Entry, compare, setting
from experiments.rows import Row
from experiments.stats import Estimate, mean_of

#: The task that stands for all those with scores from 0 to 1.
MEAN = "mean of scores"


@dataclass(frozen=True)
class Place:
    """A row of the leaderboard.

    Attributes:
        task: with its question mode, or MEAN.   tasks: those it was measured on.
        unit: "share" (scores from 0 to 1) or "nats" (per token).   kind: one of `kinds.KINDS`.
        budget: as it was asked for; "own" where the method has none.
        share: of the context that the budget is.
        entry: estimates, bytes and times, as `kvjax report` has them.
        cheap, fast: whether it is on the front of score against device bytes, against time a token.
    """

    model: str
    dtype: str
    length: int
    task: str
    tasks: tuple[str, ...]
    unit: str
    kind: str
    budget: str
    share: float
    entry: Entry
    cheap: bool = False
    fast: bool = False

    @property
    def name(self) -> str:
        """Method and budget."""
        return self.entry.policy if self.budget == "own" else f"{self.entry.policy} {self.budget}"

    @property
    def time(self) -> float | None:
        """Seconds a token, where the cell was decoded alone; a part of a batch's is nothing to rank by."""
        return self.entry.token if self.entry.batch <= 1 else None

    @property
    def goes_on(self) -> bool:
        """Whether most of the context is fed or generated after the prompt, whose bytes then say little of the cache."""
        return self.entry.prompt < self.length / 2 and "kv_peak" in self.entry.costs

    @property
    def worth(self) -> float:
        """Higher is better: `value`, of nats with its sign turned."""
        return self.value.mean if self.unit == "share" else -self.value.mean

    @property
    def value(self) -> Estimate:
        """What places are ranked and drawn by: the score, or the nats beyond the full cache's on the same prompts, since methods
        are measured on different numbers of them."""
        if self.unit == "share":
            return self.entry.score
        return self.lost or Estimate(0.0, 0.0, 0.0, self.entry.score.count)

    @property
    def lost(self) -> Estimate | None:
        """Nats a token beyond the full cache's; None of scores, and of the full cache itself."""
        return self.entry.difference if self.unit == "nats" else None


def places(rows: Sequence[Row]) -> list[Place]:
    """All places, task by task, the best first; the mean over the tasks with scores comes first where there are several.

    The model and length of the most rows come first, of each the tasks with scores, among them those of the most prompts, and
    unseen questions. The same questions seen and not are one task: their prompts are the same, and a mean of both would count them
    twice.

    Raises:
        ValueError: rows that do not compare (see `experiments.report.tables.groups`).
    """
    compared = _ordered(compare(rows, "full"))
    shares = sorted({row["budget"] for row in rows if isinstance(row["budget"], float)})
    found = [*_means(compared), *compared]
    return [place for comparison in found for place in _ranked(comparison, _tasks(comparison, compared), shares)]


def group(place: Place) -> str:
    """The budget that a place is filtered by: slots count as the share of the context that they are."""
    return place.budget if place.budget == "own" else f"{place.share:g}"


def _ordered(compared: Sequence[Comparison]) -> list[Comparison]:
    rows: Counter[tuple] = Counter()
    for c in compared:
        rows[setting(c)] += sum(e.score.count for e in c.entries)
    settings = [found for found, _ in rows.most_common()]

    def order(c: Comparison) -> tuple[int, bool, int, bool]:
        return settings.index(setting(c)), c.kind == "nats", -max(e.score.count for e in c.entries), _asked(c)[1] == "seen"

    return sorted(compared, key=order)


def _means(compared: Sequence[Comparison]) -> list[Comparison]:
    """The mean over tasks of each model and length, of the cells that all of them measured on as many prompts."""
    by_setting: dict[tuple[str, str, int], list[Comparison]] = {}
    for found in compared:
        if found.kind == "share":
            by_setting.setdefault(setting(found), []).append(found)
    several = [found for found in by_setting.values() if len({_asked(c)[0] for c in found}) > 1]
    means = [replace(found[0], task=MEAN, entries=_mean_entries(found)) for found in several]
    return [found for found in means if found.entries]


def _asked(compared: Comparison) -> tuple[str, str]:
    """A task's name, and when its question is seen."""
    task, _, mode = compared.task.rpartition(" ")
    return (task, mode) if mode in ("seen", "unseen") else (compared.task, "")


def _mean_entries(compared: Sequence[Comparison]) -> tuple[Entry, ...]:
    cells = [{(e.policy, e.budget, e.score.count): e for e in found.entries} for found in compared]
    return tuple(_mean([found[cell] for found in cells]) for cell in cells[0] if all(cell in found for found in cells))


def _mean(entries: Sequence[Entry]) -> Entry:
    differences = [e.difference for e in entries if e.difference is not None]
    return replace(
        entries[0],
        prompt=statistics.fmean(e.prompt for e in entries),
        share=statistics.fmean(e.share for e in entries),
        allocated=statistics.fmean(e.allocated for e in entries),
        host=statistics.fmean(e.host for e in entries),
        full=statistics.fmean(e.full for e in entries),
        half=statistics.fmean(e.half for e in entries),
        score=mean_of([e.score for e in entries]),
        difference=_of_all(differences, len(entries)),
        compress=_mean_time([e.compress for e in entries]),
        token=_mean_time([e.token for e in entries]),
        batch=max(e.batch for e in entries),
        costs=_mean_costs(entries),
    )


def _mean_costs(entries: Sequence[Entry]) -> dict[str, float]:
    """The figures that all of them have."""
    known = [name for name in entries[0].costs if all(name in e.costs for e in entries)]
    return {name: statistics.fmean(e.costs[name] for e in entries) for name in known}


def _of_all(differences: Sequence[Estimate], count: int) -> Estimate | None:
    return mean_of(differences) if len(differences) == count else None


def _mean_time(seconds: Sequence[float | None]) -> float | None:
    known = [value for value in seconds if value is not None]
    return statistics.fmean(known) if len(known) == len(seconds) else None


def _tasks(found: Comparison, compared: Sequence[Comparison]) -> tuple[str, ...]:
    def same(c: Comparison) -> bool:
        return (setting(c), c.kind) == (setting(found), found.kind)

    return tuple(c.task for c in compared if same(c)) if found.task == MEAN else (found.task,)


def _ranked(found: Comparison, tasks: tuple[str, ...], shares: Sequence[float]) -> list[Place]:
    shared = dict(model=found.model, dtype=found.dtype, length=found.length, task=found.task, tasks=tasks, unit=found.kind)
    made = [
        Place(**shared, kind=_kind(e), budget=_budget(e), share=share_of(e.budget, found.length, shares), entry=e)
        for e in found.entries
    ]
    made.sort(key=lambda place: (-place.worth, place.entry.allocated, place.name))
    worths, names = [place.worth for place in made], [place.name for place in made]
    cheap = front([place.entry.allocated for place in made], worths, names)
    fast = front([place.time for place in made], worths, names)
    return [replace(place, cheap=c, fast=f) for place, c, f in zip(made, cheap, fast, strict=True)]


def _kind(entry: Entry) -> str:
    return kind(kvjax.methods.info(entry.policy.partition(":")[0]))


def _budget(entry: Entry) -> str:
    takes = kvjax.methods.info(entry.policy.partition(":")[0]).parameters
    return f"{entry.budget}" if "budget" in takes else "own"


def share_of(budget: int | float, length: int, shares: Sequence[float]) -> float:
    """The share that a budget is; of slots the one of `shares` that makes as many (`cells.slots`), if one does."""
    if isinstance(budget, float):
        return budget
    return next((share for share in shares if slots(share, length) == budget), budget / length)
