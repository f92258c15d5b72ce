"""`kvjax sweep`: measure policies x budgets on tasks, into a JSONL file that can be resumed."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import kvjax
from experiments import sweep as engine
from experiments.commands.sweep_options import Budgets, DryRun, Lengths, Prefills, Prompts, Question, Seeds, Tasks, Together
from experiments.commands.tasks import parse_tasks
from experiments.console import Dtype, JsonFile, ModelName, TextFile, err, out, progress, write_json
from experiments.dry_run import print_cost
from experiments.executors import Executor, Setup, on_ray
from experiments.executors import slurm as on_slurm
from experiments.executors.local import Local
from experiments.plan_words import grid, parse_lengths, parse_seeds
from experiments.prefills import Afresh, Kept
from experiments.row_checks import trace
from experiments.rows import RowFile
from experiments.tasks.text import haystack
from experiments.traces import beside


def sweep(
    model: ModelName,
    out_file: Annotated[Path, typer.Option("--out", help="JSONL result file; an unfinished one is resumed.")],
    policies: Annotated[str, typer.Option(help="Comma-separated NAME[:key=value,...].")],
    budgets: Budgets,
    tasks: Tasks = "needle,ppl",
    lengths: Lengths = "1024",
    prompts: Prompts = 10,
    together: Together = 1,
    seed: Seeds = "0",
    question: Question = "unseen",
    text: TextFile = None,
    dtype: Dtype = "float32",
    prefills: Prefills = None,
    executor: Annotated[
        Literal["local", "ray", "slurm"], typer.Option(help="Who measures prompts: processes here, Ray, Slurm's jobs.")
    ] = "local",
    workers: Annotated[int, typer.Option(min=1, max=10_000, help="Prompts measured at a time; 1 and local: this process.")] = 1,
    slurm: Annotated[str | None, typer.Option(help="Parameters for submitit: slurm_partition=gpu,timeout_min=60,...")] = None,
    heads: Annotated[int, typer.Option(min=1, help="Devices that share the KV heads and the weights; a divisor of the heads.")] = 1,
    dry_run: DryRun = False,
    json_file: JsonFile = None,
) -> None:
    """Measure policies x budgets on tasks; one prefill a prompt; a killed sweep goes on where it was."""
    plan = engine.Plan(
        tasks=parse_tasks(tasks, question),
        lengths=parse_lengths(lengths),
        policies=grid(policies, budgets),
        prompts=prompts,
        seeds=parse_seeds(seed),
        together=together,
    )
    _check_executor(executor, workers, slurm, heads)
    source = haystack(text)
    with err.status(f"loading {model}"):
        lm = _loaded(model, dtype, heads)
    shared = engine.identity(lm, source)
    paths = [None if path is None else str(path) for path in (text, prefills)]
    words = (model, dtype, paths[0], tasks, question, lengths, policies, budgets, prompts, seed, together, paths[1])
    setup = Setup(str(Path.cwd()), *words, tuple(shared.items()))
    elsewhere = _executor(executor, setup, workers, out_file, slurm)
    if dry_run:
        write_json(json_file, dataclasses.asdict(print_cost(lm, plan, source, out_file)))
        return
    with RowFile(out_file, shared) as rows, RowFile(beside(out_file), shared, trace) as traced, progress() as bar:
        todo = sum(len(plan.missing(rows, prompt)) for prompt in plan.prompt_keys())
        line = bar.add_task(f"{len(plan.cells)} cells a prompt", total=todo)
        how = dict(prefills=Kept(prefills) if prefills else Afresh(), traced=traced, executor=elsewhere)
        measured = engine.run(lm, plan, source, rows, **how, done=lambda count: bar.advance(line, count))
    found = plan.total - todo
    out.print(f"{measured} rows measured, {found} found, in {out_file}")
    write_json(json_file, {"out": str(out_file), "measured": measured, "found": found, "rows": plan.total})


def _loaded(model: str, dtype: str, heads: int) -> Any:
    """The model, over several devices where they are asked for."""
    import models

    return models.load(model, dtype=dtype) if heads == 1 else models.load(model, dtype=dtype, mesh=kvjax.mesh(heads=heads))


def _check_executor(name: str, workers: int, slurm: str | None, heads: int) -> None:
    """Raise ValueError for options that are not those of this executor."""
    if slurm is not None and name != "slurm":
        raise ValueError(f"--slurm is for --executor slurm; here it is {name}")
    on_slurm.options(slurm)
    if heads > 1 and (name != "local" or workers > 1):
        raise ValueError(f"--heads {heads} is for a sweep in this process: leave --executor and --workers out")


def _executor(name: str, setup: Setup, workers: int, out_file: Path, slurm: str | None) -> Executor | None:
    """Who measures; None for this process."""
    if name == "ray":
        return on_ray.Ray(setup, workers)
    if name == "slurm":
        folder = out_file.absolute().with_name(f"{out_file.stem}.jobs")
        return on_slurm.Slurm(setup, workers, folder, tuple(on_slurm.options(slurm).items()))
    return Local(setup, workers) if workers > 1 else None
