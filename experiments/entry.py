"""The `kvjax` process: `experiments.cli` between its first import and its exit code."""

import sys
from typing import NoReturn

from experiments import interrupt


def command() -> NoReturn:
    """Run the command line on the process's arguments and end the process with its code."""
    interrupt.watch()
    code = _code()
    if code:
        interrupt.leave(code)
    sys.exit(code)


def _code() -> int:
    try:
        from experiments.cli import main  # seconds, in which Ctrl-C may come

        return main()
    except BaseException:
        if not interrupt.interrupted():
            raise
        # whatever became of the interruption on its way through other libraries
        print(f"error: {interrupt.SAID}", file=sys.stderr)
        return interrupt.CODE
