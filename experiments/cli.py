"""The `kvjax` command: one file a sub-command in `experiments/commands/`; every failure the user can mend is one line.

Exit codes: 0 done, 1 the command ran and found a failure, 2 bad input, 130 interrupted.
"""

from collections.abc import Sequence
from typing import Annotated

import typer
from jax.errors import JaxRuntimeError
from typer.exceptions import TyperException

from experiments.commands import (
    ablate,
    bench,
    calibrate,
    generate,
    leaderboard,
    lm_eval,
    methods,
    report,
    results,
    show,
    simulate,
    study,
    sweep,
    train,
)
from experiments.console import complain, out
from experiments.interrupt import CODE, SAID
from experiments.provenance import versions
from models.numbers import one_line

app = typer.Typer(
    add_completion=False,
    no_args_is_help=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="KV-cache compression research: generate, sweep, leaderboard, report, show, lm-eval, calibrate, train, simulate, ...",
)
app.command("generate")(generate.generate)
app.command("sweep")(sweep.sweep)
app.command("leaderboard")(leaderboard.leaderboard)
app.command("report")(report.report)
app.command("results")(results.results)
app.command("show")(show.show)
app.command("ablate")(ablate.ablate)
app.command("lm-eval")(lm_eval.lm_eval)
app.command("calibrate")(calibrate.calibrate)
app.command("train")(train.train)
app.command("simulate")(simulate.simulate)
app.command("study")(study.study)
app.command("methods")(methods.methods)
app.add_typer(bench.app, name="bench")


def _version(asked: bool) -> None:
    if asked:
        out.print(f"kvjax {versions()['kvjax']}", markup=False)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Options of `kvjax` itself."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line on `argv` (default: the process's arguments) and return the exit code."""
    try:
        code = app(args=None if argv is None else list(argv), prog_name="kvjax", standalone_mode=False)
    except TyperException as error:
        return complain(getattr(error, "format_message", error.__str__)(), 2)
    except (typer.Abort, KeyboardInterrupt):
        return complain(SAID, CODE)
    except (ValueError, OSError, ImportError, FloatingPointError) as error:
        return complain(str(error) or type(error).__name__, 2)
    except (MemoryError, JaxRuntimeError) as error:
        if not _is_memory(error):
            raise
        return complain(f"out of memory ({one_line(error)}): ask for a shorter context, fewer rows or a smaller model", 1)
    if code == CODE:  # typer makes an interruption a code
        return complain(SAID, CODE)
    return code if isinstance(code, int) else 0


def _is_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error) or "Out of memory" in str(error)
