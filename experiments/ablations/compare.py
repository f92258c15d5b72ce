"""The paper's ordering and ours, pair by pair."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from experiments.ablations.ablation import Variant
from experiments.report import column
from experiments.report.tables import begin
from experiments.rows import Row
from experiments.stats import Estimate, average, share
from experiments.stretches import units
from experiments.verdicts import Verdict, verdict

#: What tells one prompt of a task from another: length, prompt, seed; and where it begins in the text, None where rows do not say.
Prompt = tuple[int, int, int, int | None]
#: task → label → prompt → a number of which more is better.
Worths = Mapping[str, Mapping[str, Mapping[Prompt, float]]]


@dataclass(frozen=True)
class Pair:
    """Two rows that the paper ranks, and what we measured between them on one task.

    Attributes:
        better, worse: labels, as the paper ranks them.
        published: the paper's difference.
        verdict: on ours, prompt by prompt: positive where it agrees (shares, or nats saved).
    """

    better: str
    worse: str
    task: str
    published: float
    verdict: Verdict


def prompt_of(row: Row) -> Prompt:
    """What tells a row's prompt from others of its task."""
    return row["length"], row["prompt"], row["seed"], begin(row)


def worth(row: Row) -> float:
    """A row as a number of which more is better: an answer's score, minus the nats per token."""
    return row["score"] if "score" in row else -row["nll"]


def kind(task: str) -> str:
    """"nats" of what is measured in them, "share" of scores from 0 to 1."""
    return "nats" if task.partition(",")[0] == "ppl" else "share"


def worths(rows: Sequence[Row]) -> Worths:
    """The numbers of all rows; tasks with the question in the prompt come first, then unseen, then nats.

    A task that was measured at several lengths is a task for each.
    """
    found: dict[str, dict[str, dict[Prompt, float]]] = {}
    lengths = Counter(task for task, _ in {(column(row), row["length"]) for row in rows})
    for row in sorted(rows, key=_order):
        prompt, task = prompt_of(row), column(row)
        name = task if lengths[task] == 1 else f"{task}, {row['length']} tokens"
        found.setdefault(name, {}).setdefault(row["policy"], {})[prompt] = worth(row)
    return found


def _order(row: Row) -> tuple[int, str, int]:
    return {"seen": 0, "unseen": 1}.get(row["mode"], 2), row["task"], row["length"]


def mean_of_prompts(by_prompt: Mapping[Prompt, float], kind: str) -> Estimate:
    """The mean of scores, or of nats per token, of prompts."""
    if kind == "share":
        return share(list(by_prompt.values()))
    return average([-x for x in by_prompt.values()], units([begin for *_, begin in by_prompt]))


def pairs(variants: Sequence[Variant], rows: Sequence[Row]) -> list[Pair]:
    """Every pair of rows the paper ranks, on every task."""
    known = [(variant.label, variant.published) for variant in variants if variant.published is not None]
    ranked = [sorted(pair, key=lambda named: -named[1]) for pair in combinations(known, 2)]
    return [
        Pair(better, worse, task, first - second, compared(by_label[better], by_label[worse], kind(task)))
        for task, by_label in worths(rows).items()
        for (better, first), (worse, second) in ranked
        if first != second and by_label.get(better, {}).keys() & by_label.get(worse, {}).keys()
    ]


def compared(better: Mapping[Prompt, float], worse: Mapping[Prompt, float], kind: str) -> Verdict:
    """The verdict on the prompts that both have."""
    shared = sorted(better.keys() & worse.keys(), key=lambda prompt: prompt[:3])
    values = ([of[prompt] for prompt in shared] for of in (better, worse))
    return verdict(*values, kind, units([begin for *_, begin in shared]))
