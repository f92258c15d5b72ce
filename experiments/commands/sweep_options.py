"""Options of the commands that measure a grid: policies x budgets on tasks."""

from pathlib import Path
from typing import Annotated

import typer

from experiments.commands.tasks import KNOWN

#: Of a task and length: a plan is gone through prompt by prompt before anything is measured.
MOST_PROMPTS = 100_000

Budgets = Annotated[str, typer.Option("--budgets", help="Comma-separated: 256 slots per KV head, or 0.5 of the prompt.")]
Tasks = Annotated[str, typer.Option("--tasks", help=f"Comma-separated: {KNOWN}.")]
Lengths = Annotated[str, typer.Option("--lengths", help="Comma-separated context lengths in tokens.")]
Prompts = Annotated[int, typer.Option("--prompts", min=1, max=MOST_PROMPTS, help="Prompts of each task and length.")]
Seeds = Annotated[str, typer.Option("--seed", help="Seed of the prompts, or several, comma-separated.")]
Question = Annotated[str, typer.Option("--question", help="unseen or seen when the prompt is compressed, or both.")]
Prefills = Annotated[Path | None, typer.Option("--prefills", help="Folder of prefilled prompts, read where there, else written.")]
Together = Annotated[int, typer.Option("--together", min=1, max=64, help="Prompts of a task whose cells are decoded as one batch.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and its estimated cost, measure nothing.")]
