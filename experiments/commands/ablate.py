"""`kvjax ablate`: the ablation tables of the papers, run on any model, with the paper's ordering beside ours."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from experiments.ablations import names
from experiments.ablations.run import Settings, find, planned, run
from experiments.commands.sweep_options import MOST_PROMPTS, DryRun, Together
from experiments.console import Dtype, JsonFile, ModelName, Seed, TextFile, err, out, progress, write_json
from experiments.dry_run import print_cost
from experiments.plan_words import parse_lengths
from experiments.policies import parse_budget
from experiments.tasks.text import haystack


def ablate(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(names())}.")],
    model: ModelName = "smollm2-135m",
    folder: Annotated[Path, typer.Option("--out", help="Folder for NAME.jsonl, NAME.md and NAME.png.")] = Path("out"),
    budget: Annotated[str | None, typer.Option(help="Slots per KV head, or the share kept; default: the table's own.")] = None,
    tasks: Annotated[str | None, typer.Option(help="Comma-separated tasks; default: the table's own.")] = None,
    question: Annotated[str | None, typer.Option(help="unseen, seen or both; default: the table's own.")] = None,
    lengths: Annotated[str | None, typer.Option(help="Comma-separated context lengths; default: the table's own.")] = None,
    prompts: Annotated[
        int | None, typer.Option(min=1, max=MOST_PROMPTS, help="Prompts of each task and length; default: the table's own.")
    ] = None,
    together: Together = 1,
    artefact: Annotated[
        list[Path] | None,
        typer.Option(help="Folder of an artefact, may be repeated; default: the built-in one, else calibrated now and kept."),
    ] = None,
    seed: Seed = 0,
    text: TextFile = None,
    dtype: Dtype = "float32",
    dry_run: DryRun = False,
    json_file: JsonFile = None,
) -> None:
    """Run one ablation table on any model; a killed run goes on where it was."""
    find(name)
    settings = Settings(
        lengths=None if lengths is None else parse_lengths(lengths),
        prompts=prompts,
        seed=seed,
        budget=None if budget is None else parse_budget(budget),
        tasks=tasks,
        question=question,
        artefacts=tuple(artefact or ()),
        together=together,
    )
    import models

    source = haystack(text)
    with err.status(f"loading {model}"):
        lm = models.load(model, dtype=dtype)
    if dry_run:
        _, _, plan = planned(name, lm, source, settings)
        write_json(json_file, asdict(print_cost(lm, plan, source, folder / f"{name}.jsonl")))
        return
    with progress() as bar:
        report = run(name, lm, source, settings, folder, progress=bar)
    out.print(report, markup=False)
    write_json(json_file, {"name": name, "report": report, "rows": str(folder / f"{name}.jsonl")})
