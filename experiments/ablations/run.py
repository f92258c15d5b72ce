"""Running an ablation: a sweep of its variants, then the table, the orderings and the figure."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from experiments import sweep as engine
from experiments.ablations import names
from experiments.ablations.ablation import Ablation, Artefacts, Setting, Variant
from experiments.ablations.artefacts import Calibrated, given
from experiments.ablations.page import markdown
from experiments.entry import command
from experiments.files import write_atomically
from experiments.policies import Named
from experiments.row_checks import trace
from experiments.rows import Row, RowFile, read
from experiments.tasks.text import Haystack
from experiments.traces import beside


@dataclass(frozen=True)
class Settings:
    """How an ablation is run, None takes the ablation's own default.

    Attributes:
        lengths, prompts, seed, budget, tasks, question: how large.   artefacts: folders that go before all others.
        together: prompts whose cells are decoded as one batch.
    """

    lengths: tuple[int, ...] | None = None
    prompts: int | None = None
    seed: int = 0
    budget: int | float | None = None
    tasks: str | None = None
    question: str | None = None
    artefacts: tuple[Path, ...] = ()
    together: int = 1


def setting(decoder: Any, budget: int | float, artefact: Artefacts) -> Setting:
    """The setting of a model, from what has its sizes."""
    return Setting(decoder.layers, decoder.heads, decoder.groups, decoder.head_dim, budget, artefact)


def find(name: str) -> Ablation:
    """The ablation of a file of this folder.

    Raises:
        ValueError: there is no such file.
    """
    if name not in names():
        raise ValueError(f"unknown ablation {name!r}; known: {', '.join(names())}")
    return import_module(f"experiments.ablations.{name}").ABLATION


def planned(name: str, lm: Any, text: Haystack, settings: Settings) -> tuple[Ablation, Sequence[Variant], engine.Plan]:
    """The ablation, its variants for this model, calibrated where they have to be, and what is to be measured."""
    from experiments.commands.tasks import parse_tasks

    ablation = find(name)
    budget = ablation.budget if settings.budget is None else settings.budget
    variants = ablation.variants(setting(lm.decoder, budget, Calibrated(lm, given(settings.artefacts, lm), text.text)))
    plan = engine.Plan(
        tasks=parse_tasks(settings.tasks or ablation.tasks, settings.question or ablation.question),
        lengths=settings.lengths or ablation.lengths,
        policies=tuple(Named(v.label, budget, v.policy()) for v in variants),
        prompts=settings.prompts or ablation.prompts,
        seeds=(settings.seed,),
        together=settings.together,
    )
    return ablation, variants, plan


def run(name: str, lm: Any, text: Haystack, settings: Settings, folder: Path, *, progress: Any) -> str:
    """Measure what `folder`/NAME.jsonl lacks, with traces beside it, then write NAME.md and NAME.png; returns the markdown."""
    from experiments.ablations.figure import draw

    ablation, variants, plan = planned(name, lm, text, settings)
    folder.mkdir(parents=True, exist_ok=True)
    path, shared = folder / f"{name}.jsonl", engine.identity(lm, text)
    with RowFile(path, shared) as rows, RowFile(beside(path), shared, trace) as traced:
        line = progress.add_task(name, total=plan.total)
        engine.run(lm, plan, text, rows, traced=traced, done=lambda count: progress.advance(line, count))
    found = of_settings(plan, read(path))
    report = markdown(ablation, variants, found)
    write_atomically(folder / f"{name}.md", report.encode())
    draw(ablation, variants, found, folder / f"{name}.png")
    return report


def of_settings(plan: engine.Plan, rows: Sequence[Row]) -> list[Row]:
    """The rows of the plan's policies at its budgets, of any task, length and prompt.

    A file may hold rows of the same labels at another budget or with another artefact, which no table counts as one.
    """
    cells = {(cell.policy.in_full(), cell.budget) for cell in plan.cells}
    return [row for row in rows if (row["policy_repr"], row["budget"]) in cells]


def main(file: str) -> None:
    """`python -m experiments.ablations.NAME ...` is `kvjax ablate NAME ...`."""
    sys.argv[1:1] = ["ablate", Path(file).stem]
    command()
