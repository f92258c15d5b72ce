"""The leaderboard's pages: every method that was measured, from the committed rows."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import kvjax
from experiments.full_cache import OF_HALF
from experiments.leaderboard.board import Place, places
from experiments.leaderboard.pack import COMMITTED
from experiments.leaderboard.repeat import commands
from experiments.leaderboard.write import CSV, PAGE, write
from experiments.markdown_table import table
from experiments.report.comparison import setting
from experiments.report.words import difference, estimate
from experiments.result_pages.other_prompts import sections
from experiments.result_pages.standing import said, shown
from experiments.rows import Row
from experiments.stats import Estimate
from kvjax.artefacts.artefact import built_in
from kvjax.short_repr import span

_ABOUT = f"""Every method of `kvjax methods` that runs on this model as it comes, at the same budgets. A score is the share of
prompts answered, in percent, with its 95% interval (Wilson), or nats a token; under a share of the prompt stands the score with
that share of its slots kept, of nats the difference to the full cache on the same prompts, with its 95% interval; n is the number
of prompts, the first ones of one list. The other columns are bytes allocated for the prompt on the device and in host memory, as
shares of the whole cache in 16 bits, of which a float32 cache takes 200%; of `counting_given`, whose prompt is an eighth of the
context, the key entries held at most, as a share of those of the whole cache. Slots above a prompt's length cut while decoding
alone; what `counting_given` asks for stands in the prompt, which `triattention` and `random_attention` hold on to.
[{PAGE}]({PAGE}) sorts, filters and draws the same rows; [{CSV}]({CSV}) has the numbers."""

_AGAIN = """A killed run goes on where it was. `python -m experiments.leaderboard.pack FOLDER` joins what was measured to the rows
of the library, `kvjax results leaderboard` makes this page of them. TRAINED is the folder that `kvjax train` wrote of a model
whose own weights a method trains, with the settings of [add a gate](../add_a_gate.md)."""


#: What keeps every slot, some of them in host memory.
ELSEWHERE = "retrieve"


@cache
def rows() -> list[Row]:
    """The committed rows."""
    return shown(COMMITTED)


def page() -> str:
    """docs/results/leaderboard.md."""
    found = rows()
    lines = ["# Leaderboard", ""]
    if not found:
        return "\n".join([*lines, "No rows yet.", "", "```bash", "kvjax leaderboard --model smollm2-135m --out FOLDER", "```", ""])
    lines += [_ABOUT, "", said(found), ""]
    by_task: dict[tuple, list[Place]] = {}
    for place in places(found):
        by_task.setdefault((*setting(place), place.task), []).append(place)
    for (model, dtype, length, task), of_task in by_task.items():
        lines += [f"## {task}: {model}, {dtype}, {length} tokens", "", *_tables(of_task)]
    missing = _missing(found)
    lines += ["## Not measured", "", *table(["method", "why"], missing, texts=2), ""] if missing else []
    lines += sections(found)
    return "\n".join([*lines, "## Measured again", "", "```bash", command(found), "```", "", _AGAIN, ""])


def beside(folder: Path) -> None:
    """Write leaderboard.html and leaderboard.csv into the folder, where there are rows."""
    if rows():
        write(rows(), folder, left_out=dict(_missing(rows())), command=command(rows()), again=Path("out/leaderboard"))


def top(count: int, task: str = "needle unseen") -> list[str]:
    """A table of the best `count` methods that let go of slots, by the mean of their scores; nothing where there are no rows.

    Its last column is what they lose in nats a token where a quarter of the slots stays.
    """
    found = places(rows())
    first = next((place for place in found if place.task == task), None)
    if first is None:
        return []
    same = [place for place in found if setting(place) == setting(first)]
    mine = [place for place in same if place.task == task and place.budget != "own" and place.kind != ELSEWHERE]
    quarter = [place for place in same if place.unit == "nats" and place.budget == "0.25"]
    lost = {place.entry.policy: place.entry.difference for place in quarter if place.entry.difference is not None}
    return _budgeted(mine, lost)[: count + 2] if mine else []


def command(found: Sequence[Row]) -> str:
    """The command lines that measure all of it, and no more."""
    return "\n".join(commands(found, "out/leaderboard"))


def _tables(found: Sequence[Place]) -> list[str]:
    with_budget = [place for place in found if place.budget != "own"]
    own = [place for place in found if place.budget == "own"]
    lines = [*_budgeted(with_budget), ""] if with_budget else []
    return [*lines, *_without(own), ""] if own else lines


def _budgeted(found: Sequence[Place], lost: Mapping[str, Estimate] | None = None) -> list[str]:
    """A method a line, its budgets side by side, best mean first; beside them what each method has `lost` in nats, where told."""
    by_method: dict[str, dict[float, Place]] = {}
    for place in found:
        by_method.setdefault(place.entry.policy, {})[place.share] = place
    budgets = sorted({share for mine in by_method.values() for share in mine}, reverse=True)
    whole = [name for name, mine in by_method.items() if len(mine) == len(budgets)]
    rest = [name for name in by_method if name not in whole]
    worths = {name: statistics.fmean(place.worth for place in mine.values()) for name, mine in by_method.items()}
    lines = []
    for name in [*sorted(whole, key=lambda x: (-worths[x], x)), *sorted(rest, key=lambda x: (-worths[x], x))]:
        mine = by_method[name]
        smallest = mine[min(mine)]
        scores = [_score(mine[b]) if b in mine else "-" for b in budgets]
        beside = [] if lost is None else [difference(lost[name], "nats") if name in lost else "-"]
        lines.append([_linked(name), smallest.kind, *scores, _size(smallest), _counts(mine.values()), *beside])
    least = f"{100 * budgets[-1]:g}%"
    size = f"most entries at {least}, of full cache" if found[0].goes_on else f"bytes at {least}, {OF_HALF}"
    heads = ["method", "kind", *(f"{100 * b:g}%" for b in budgets), size, "n"]
    return _table(heads if lost is None else [*heads, _lost_of(lost) if lost else "nats lost at 25%"], lines)


def _counts(found: Iterable[Place]) -> str:
    """Prompts of every cell: `50`, or `10 to 50`."""
    return span(place.entry.score.count for place in found)


def _lost_of(lost: Mapping[str, Estimate]) -> str:
    """`nats lost at 25%, of 8 texts`."""
    return f"nats lost at 25%, of {span(e.count for e in lost.values())} texts"


def _without(found: Sequence[Place]) -> list[str]:
    """Methods whose size is their own: bits, pages read, host memory."""
    lines = [
        [_linked(place.entry.policy), place.kind, _score(place), _size(place), _host(place),
         str(place.entry.score.count)]
        for place in found
    ]  # fmt: skip
    return _table(["method", "kind", "score", "most entries" if found[0].goes_on else OF_HALF, "on the host", "n"], lines)


def _score(place: Place) -> str:
    """The score; of nats what is lost, whose interval is not that of the prompts themselves."""
    return difference(place.lost, "nats") if place.lost else estimate(place.entry.score, place.unit)


def _table(heads: list[str], lines: list[list[str]]) -> list[str]:
    """A table whose first column holds links, which must stay links."""
    made = table(heads, [["", *line[1:]] for line in lines], texts=2)
    return [*made[:2], *(f"| {line[0]} {row.removeprefix('|  ')}" for line, row in zip(lines, made[2:], strict=True))]


def _linked(policy: str) -> str:
    name = policy.partition(":")[0]
    rest = policy[len(name) + 1 :]
    return f"[{name}](../methods.md#{name})" + (f" `{rest}`" if rest else "")


def _size(place: Place) -> str:
    """Of the whole cache: bytes for the prompt, or where most of the context comes after it, the entries held at most."""
    return f"{100 * place.entry.costs['kv_peak']:.1f}%" if place.goes_on else _bytes(place)


def _bytes(place: Place) -> str:
    return f"{100 * place.entry.allocated / place.entry.half:.1f}%"


def _host(place: Place) -> str:
    return f"{100 * place.entry.host / place.entry.half:.1f}%" if place.entry.host else "-"


def _missing(found: Sequence[Row]) -> list[tuple[str, str]]:
    measured = {row["policy"].partition(":")[0] for row in found}
    models = sorted({row["model"] for row in found})
    return [(name, _why(name, models)) for name in kvjax.methods.names() if name not in measured]


def _why(name: str, models: Sequence[str]) -> str:
    if any(f"{model}/{name}" in built_in() for model in models):
        return "no rows yet"
    if "training" in kvjax.methods.info(name).requires:
        return "wants weights that do not come with the library"
    return f"kvjax leaderboard --methods {name} --dry-run tells"
