"""`kvjax leaderboard`: every method at a few budgets on small tasks, as a table and as a page."""

import shlex
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

import kvjax
from experiments import sweep as engine
from experiments.commands.sweep_options import Budgets, DryRun, Lengths, Prefills, Prompts, Question, Seeds, Tasks, Together
from experiments.commands.tasks import parse_tasks
from experiments.console import Dtype, JsonFile, ModelName, TextFile, err, out, progress, write_json
from experiments.dry_run import checked_cost
from experiments.leaderboard.alone import Alone
from experiments.leaderboard.cells import Cells, cells, with_built_in, without
from experiments.leaderboard.plan import lines
from experiments.leaderboard.run import run
from experiments.leaderboard.write import CSV, PAGE, ROWS, write
from experiments.leaks import refused
from experiments.pages.charts import library
from experiments.plan_words import parse_budgets, parse_lengths, parse_seeds
from experiments.policies import split_specs
from experiments.prefills import Afresh, Kept
from experiments.rows import Row
from experiments.tasks.text import haystack

#: Retrieval of one needle and of one of many pairs, tracing of variables, and what follows a text.
SMALL = "needle,keyvalue,vt,ppl"


def leaderboard(
    model: ModelName,
    folder: Annotated[Path, typer.Option("--out", help=f"Folder for {PAGE}, {CSV} and {ROWS}, which a later run resumes.")],
    methods: Annotated[str | None, typer.Option(help="Comma-separated NAME[:key=value,...] [all of `kvjax methods`].")] = None,
    budgets: Budgets = "0.5,0.25,0.125",
    tasks: Tasks = SMALL,
    lengths: Lengths = "1024",
    prompts: Prompts = 50,
    together: Together = 1,
    seed: Seeds = "0",
    question: Question = "unseen",
    text: TextFile = None,
    dtype: Dtype = "float32",
    prefills: Prefills = None,
    batched: Annotated[bool, typer.Option("--batched", help="Decode cells together: sooner, but without their own times.")] = False,
    dry_run: DryRun = False,
    json_file: JsonFile = None,
) -> None:
    """Measure every method; print the plan and its cost first; a killed run goes on where it was."""
    library()  # what is missing is said before hours are spent
    if together > 1 and not batched:
        raise ValueError(f"--together {together} decodes prompts as one batch, which has no times of single cells: add --batched")
    pairs = parse_tasks(tasks, question)
    at = parse_lengths(lengths)
    shares = parse_budgets(budgets)
    seeds, source = parse_seeds(seed), haystack(text)
    import models

    with err.status(f"loading {model}"):
        lm = models.load(model, dtype=dtype)
    asked = with_built_in(split_specs(methods) if methods else kvjax.methods.names(), Path(lm.name).name)
    found = cells(asked, shares, lm.decoder, at)
    found = without(found, refused(found.measured, source.text, "the text that prompts are cut from"))
    timed = pairs if batched else tuple((Alone(task), mode) for task, mode in pairs)
    plan = engine.Plan(tasks=timed, lengths=at, policies=found.measured, prompts=prompts, seeds=seeds, together=together)
    cost = checked_cost(lm, plan, source, folder / ROWS)
    in_batches = None if batched else checked_cost(lm, replace(plan, tasks=pairs), source, folder / ROWS)
    out.print("\n".join(lines(plan, found, cost, in_batches)), markup=False)
    if dry_run:
        write_json(json_file, {"cost": asdict(cost), "cells": [[cell.name, cell.budget] for cell in plan.cells], **_left(found)})
        return
    typed = {
        "--model": model, "--dtype": dtype, "--methods": methods, "--budgets": budgets, "--tasks": tasks, "--question": question,
        "--lengths": lengths, "--prompts": prompts, "--seed": seed, "--together": together if together > 1 else None,
        "--text": text, "--out": folder,
    }  # fmt: skip

    def publish(rows: list[Row]) -> None:
        write(rows, folder, left_out=found.left_out, command=_command(typed, batched))

    folder.mkdir(parents=True, exist_ok=True)
    with progress() as bar:
        line = bar.add_task(f"{len(plan.cells)} cells a prompt", total=cost.rows)
        how = dict(prefills=Kept(prefills) if prefills else Afresh(), publish=publish, done=lambda count: bar.advance(line, count))
        measured = run(lm, plan, source, folder, **how)
    _finish(folder, {"measured": measured, "found": cost.found, **_left(found)}, json_file)


def _finish(folder: Path, payload: dict[str, object], json_file: Path | None) -> None:
    measured, found = payload["measured"], payload["found"]
    out.print(f"{measured} rows measured, {found} found; wrote {folder / PAGE} and {folder / CSV}", markup=False)
    write_json(json_file, payload | {"page": str(folder / PAGE), "csv": str(folder / CSV), "rows": str(folder / ROWS)})


def _left(found: Cells) -> dict[str, dict[str, str]]:
    return {"left_out": dict(found.left_out)}


def _command(typed: Mapping[str, object], batched: bool) -> str:
    """The command line again, without options that were not given a value."""
    words = [word for option, value in typed.items() if value is not None for word in (option, str(value))]
    return shlex.join(["kvjax", "leaderboard", *words, *(["--batched"] if batched else [])])
