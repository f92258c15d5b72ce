"""The `kvjax` command: one file a sub-command in `experiments/commands/`; every failure the user can mend is one line.

Exit codes: 0 done, 1 the command ran and found a failure, 2 bad input, 130 interrupted.
"""

from collections.abc import Sequence

import typer
from typer.exceptions import TyperException

from experiments.commands import ablate, bench, calibrate, generate, lm_eval, report, show, sweep
from experiments.console import complain

app = typer.Typer(
    add_completion=False,
    no_args_is_help=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="KV-cache compression research: generate, sweep, report, show, lm-eval, ablate, calibrate, bench.",
)
app.command("generate")(generate.generate)
app.command("sweep")(sweep.sweep)
app.command("report")(report.report)
app.command("show")(show.show)
app.command("ablate")(ablate.ablate)
app.command("lm-eval")(lm_eval.lm_eval)
app.command("calibrate")(calibrate.calibrate)
app.add_typer(bench.app, name="bench")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line on `argv` (default: the process's arguments) and return the exit code."""
    try:
        code = app(args=None if argv is None else list(argv), prog_name="kvjax", standalone_mode=False)
    except TyperException as error:
        return complain(getattr(error, "format_message", error.__str__)(), 2)
    except (typer.Abort, KeyboardInterrupt):
        return complain("interrupted; rows already written are safe, the same command goes on from there", 130)
    except (ValueError, OSError, ImportError, FloatingPointError) as error:
        return complain(str(error) or type(error).__name__, 2)
    return code if isinstance(code, int) else 0
