"""The paper's ordering and ours side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from experiments.ablations.ablation import Ablation, Variant
from experiments.full_cache import MB
from experiments.markdown_table import table
from experiments.report import column
from experiments.rows import Row
from experiments.stats import Estimate, average


@dataclass(frozen=True)
class Pair:
    """Two rows the paper ranks, and what we measured between them on one task.

    Attributes:
        better, worse: labels, as the paper ranks them.
        published: the paper's difference.
        ours: our difference prompt by prompt, positive where it agrees (shares, or nats saved).
    """

    better: str
    worse: str
    task: str
    published: float
    ours: Estimate

    @property
    def verdict(self) -> str:
        """agrees, reversed, or equal; `?` where the 95% interval does not tell."""
        if self.ours.mean == 0:
            return "equal"
        word = "agrees" if self.ours.mean > 0 else "reversed"
        clear = self.ours.low > 0 or self.ours.high < 0
        return word if clear else f"{word} ?"


def worth(row: Row) -> float:
    """A row as a number of which more is better: 1 or 0 for an answer, minus the nats per token."""
    return row["score"] if "score" in row else -row["nll"]


def scores(rows: Sequence[Row]) -> dict[str, dict[str, dict[tuple, float]]]:
    """task -> label -> prompt -> worth."""
    found: dict[str, dict[str, dict[tuple, float]]] = {}
    for row in rows:
        prompt = (row["length"], row["prompt"], row["seed"])
        found.setdefault(column(row), {}).setdefault(row["policy"], {})[prompt] = worth(row)
    return found


def pairs(variants: Sequence[Variant], rows: Sequence[Row]) -> list[Pair]:
    """Every pair of rows the paper ranks, on every task."""
    ranked = [(a, b) if a.published > b.published else (b, a) for a, b in combinations(_published(variants), 2)]
    return [
        Pair(a.label, b.label, task, a.published - b.published, _difference(by_label[a.label], by_label[b.label]))
        for task, by_label in scores(rows).items()
        for a, b in ranked
        if a.published != b.published and a.label in by_label and b.label in by_label
    ]


def _published(variants: Sequence[Variant]) -> list[Variant]:
    return [variant for variant in variants if variant.paper]


def _difference(better: Mapping[tuple, float], worse: Mapping[tuple, float]) -> Estimate:
    shared = better.keys() & worse.keys()
    return average([better[prompt] - worse[prompt] for prompt in sorted(shared)])


def markdown(ablation: Ablation, variants: Sequence[Variant], rows: Sequence[Row]) -> str:
    """The table of both, then every ordering of the paper with our verdict."""
    found = pairs(variants, rows)
    lines = [f"**{ablation.title}** ({ablation.source})", "", *_table(variants, rows), ""]
    for task in dict.fromkeys(pair.task for pair in found):
        lines += _orderings([pair for pair in found if pair.task == task], task)
    return "\n".join(lines + ([ablation.note, ""] if ablation.note else []))


def _table(variants: Sequence[Variant], rows: Sequence[Row]) -> list[str]:
    columns = list(dict.fromkeys(name for variant in variants for name in variant.paper))
    found = scores(rows)
    heads = ["variant", *(f"paper: {name}" for name in columns), "paper's rank"]
    heads += [part for task in found for part in (f"ours: {_unit(task)}", "our rank")] + ["device MB", "host MB"]
    body = [_line(label, paper, columns, variants, rows, found) for label, paper in _labels(variants, found)]
    return table(heads, body, texts=1)


def _labels(variants: Sequence[Variant], found: Mapping[str, Any]) -> list[tuple[str, Mapping[str, float]]]:
    named = [(variant.label, variant.paper) for variant in variants]
    full = any("full" in by_label for by_label in found.values())
    return ([("full", {})] if full and "full" not in dict(named) else []) + named


def _line(label, paper, columns, variants, rows, found) -> list[str]:
    means = {v.label: v.published for v in variants if v.paper}
    cells = [label, *(f"{paper[name]:g}" if name in paper else "-" for name in columns), _rank(label, means)]
    for task, by_label in found.items():
        ours = {v.label: _mean(by_label[v.label]) for v in variants if v.label in by_label}
        cells += [_value(task, by_label.get(label)), _rank(label, ours)]
    mine = [row for row in rows if row["policy"] == label]
    mean = lambda name: f"{sum(row[name] for row in mine) / len(mine) / MB:.2f}" if mine else "-"  # noqa: E731
    return [*cells, mean("allocated_bytes"), mean("host_bytes")]


def _mean(by_prompt: Mapping[tuple, float]) -> float:
    return sum(by_prompt.values()) / len(by_prompt)


def _rank(label: str, means: Mapping[str, float]) -> str:
    return f"{1 + sum(other > means[label] for other in means.values())}" if label in means else "-"


def _unit(task: str) -> str:
    return "ppl, nats/token" if task == "ppl" else f"{task}, %"


def _value(task: str, by_prompt: Mapping[tuple, float] | None) -> str:
    if by_prompt is None:
        return "-"
    mean = _mean(by_prompt)
    return f"{-mean:.4f} n={len(by_prompt)}" if task == "ppl" else f"{100 * mean:.0f} n={len(by_prompt)}"


def _orderings(found: Sequence[Pair], task: str) -> list[str]:
    agree = sum(pair.ours.mean > 0 for pair in found)
    lines = [f"{task}: {agree} of {len(found)} orderings of the paper hold (paired over prompts; ? = within the 95% interval)", ""]
    for pair in found:
        half = "" if pair.ours.high != pair.ours.high else f" ± {pair.ours.high - pair.ours.mean:.4f}"
        lines.append(f"- {pair.better} > {pair.worse} (paper {pair.published:+.2f}): {pair.verdict}, {pair.ours.mean:+.4f}{half}")
    return [*lines, ""]
