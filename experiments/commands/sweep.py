"""`kvjax sweep`: measure policies x budgets on tasks, into a JSONL file that can be resumed."""

from pathlib import Path
from typing import Annotated

import typer

from experiments import sweep as engine
from experiments.console import Dtype, JsonFile, ModelName, TextFile, err, out, progress, write_json
from experiments.policies import Named, parse_budget, parse_policy, split_specs
from experiments.rows import RowFile
from experiments.tasks import needle, ppl
from experiments.tasks.answering import Answering
from experiments.tasks.text import haystack

TASKS = {task.NAME: task for task in (Answering(needle), ppl)}


def sweep(
    model: ModelName,
    out_file: Annotated[Path, typer.Option("--out", help="JSONL result file; an unfinished one is resumed.")],
    policies: Annotated[str, typer.Option(help="Comma-separated NAME[:key=value,...].")],
    budgets: Annotated[str, typer.Option(help="Comma-separated: 256 slots per KV head, or 0.5 of the prompt.")],
    tasks: Annotated[str, typer.Option(help=f"Comma-separated: {', '.join(TASKS)}.")] = "needle,ppl",
    lengths: Annotated[str, typer.Option(help="Comma-separated context lengths in tokens.")] = "1024",
    prompts: Annotated[int, typer.Option(min=1, help="Prompts of each task and length.")] = 10,
    seed: Annotated[int, typer.Option(help="Seed of the prompts.")] = 0,
    question: Annotated[str, typer.Option(help="unseen or seen when the prompt is compressed, or both.")] = "unseen",
    text: TextFile = None,
    dtype: Dtype = "float32",
    json_file: JsonFile = None,
) -> None:
    """Measure policies x budgets on tasks; one prefill a prompt; a killed sweep goes on where it was."""
    plan = engine.Plan(
        tasks=parse_tasks(tasks, question),
        lengths=tuple(parse_length(part) for part in _parts("--lengths", lengths)),
        policies=grid(policies, budgets),
        prompts=prompts,
        seed=seed,
    )
    import models

    source = haystack(text)
    with err.status(f"loading {model}"):
        lm = models.load(model, dtype=dtype)
    with RowFile(out_file, engine.identity(lm, plan, source)) as rows, progress() as bar:
        found = len(rows)
        line = bar.add_task(f"{len(plan.cells)} cells a prompt", total=plan.total)
        measured = engine.run(lm, plan, source, rows, done=lambda count: bar.advance(line, count))
    out.print(f"{measured} rows measured, {found} found, in {out_file}")
    write_json(json_file, {"out": str(out_file), "measured": measured, "found": found, "rows": plan.total})


def grid(policies: str, budgets: str) -> tuple[Named, ...]:
    """Every policy at every budget; a method without a budget comes once."""
    shares = [parse_budget(part) for part in _parts("--budgets", budgets)]
    named = [parse_policy(spec, budget) for spec in _specs(policies) for budget in shares]
    return tuple({(cell.name, cell.budget): cell for cell in named}.values())


def parse_tasks(names: str, question: str) -> tuple[tuple[engine.Task, str], ...]:
    """`"needle,ppl"` and a question mode -> (task, mode) pairs; a task without a question runs once."""
    if question not in ("unseen", "seen", "both"):
        raise ValueError(f"--question {question!r} is none of unseen, seen, both")
    pairs = []
    for name in _parts("--tasks", names):
        if name not in TASKS:
            raise ValueError(f"unknown task {name!r}; known: {', '.join(TASKS)}")
        modes = TASKS[name].MODES
        pairs += [(TASKS[name], mode) for mode in modes if mode == question or question == "both" or mode == "-"]
    return tuple(dict.fromkeys(pairs))


def parse_length(text: str) -> int:
    """A positive number of tokens."""
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"--lengths: {text!r} is not a positive number of tokens")
    return int(text)


def _specs(text: str) -> list[str]:
    specs = split_specs(text)
    if not specs:
        raise ValueError("--policies is empty: name at least one, such as snapkv")
    return specs


def _parts(option: str, text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise ValueError(f"{option} is empty: give at least one value")
    return parts
