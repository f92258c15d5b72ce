"""A process that has imported everything, and forks a child for each command that it is told: `python -m tests.kills.warm`.

A line of JSON on its input says what to run (`Attempt`), a line on its output how that ended (`Ended`). The child is a process of
its own that runs the real command and starts JAX afresh. SIGKILL ends it: sent by this process after a time, or when so much has
been written, or by the child to itself just before one of its changes to the folder, a moment that no other process could hit.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import matplotlib.backends.backend_agg
import orbax.checkpoint
import pydantic
import transformers

import experiments.ablations.figure
import experiments.calibrate.fasa
import experiments.train.trim_kv
import kvjax.train
import models.tokenizer
from experiments import cli
from tests.kills.attempt import Attempt, Ended, size_of
from tests.kills.conversation import converse

#: What commands import late, here once for all children.
LATE = (
    matplotlib.backends.backend_agg, orbax.checkpoint, pydantic.BaseModel, transformers.PreTrainedTokenizerFast, kvjax.train,
    experiments.ablations.figure, experiments.calibrate.fasa, experiments.train.trim_kv, models.tokenizer,
)  # fmt: skip
COMMANDS: dict[str, Callable[[list[str]], int]] = {"kvjax": cli.main, "converse": converse}
#: What changes a folder, as Python's audit hooks name it; `open` counts where it writes.
CHANGES = ("os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.truncate", "open")


def main() -> None:
    """Run attempts until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what children print
    for line in sys.stdin:
        print(json.dumps(attempted(json.loads(line))), file=answers, flush=True)


def attempted(attempt: Attempt) -> Ended:
    """Fork, wait, kill."""
    began = time.perf_counter()
    heard, told = os.pipe()
    child = os.fork()
    if not child:
        work(attempt, told)
    os.close(told)
    end = began + (600.0 if attempt["seconds"] is None else attempt["seconds"])
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        full = attempt["size"] is not None and size_of(attempt["folder"]) > attempt["size"]
        if full or time.perf_counter() >= end:
            os.kill(child, signal.SIGKILL)
            ended = os.waitpid(child, 0)
            break
        time.sleep(1e-3)
    with os.fdopen(heard) as said:
        changes = int(said.read() or 0)
    return {"code": os.waitstatus_to_exitcode(ended[1]), "seconds": time.perf_counter() - began, "changes": changes}


def work(attempt: Attempt, told: int) -> NoReturn:
    """The child."""
    code, changes = 70, Changes(attempt["folder"], attempt["changes"])
    try:
        sys.addaudithook(changes.hear)
        code = COMMANDS[attempt["command"]](attempt["argv"])
        os.write(told, str(changes.count).encode())
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


@dataclass
class Changes:
    """An audit hook that counts what changes a folder, and ends its process before the change of number `last`."""

    folder: str
    last: int | None
    count: int = 0

    def hear(self, event: str, words: tuple) -> None:
        if event not in CHANGES or not any(map(self._inside, words)):
            return
        if event == "open" and not words[2] & (os.O_WRONLY | os.O_RDWR):
            return
        if self.count == self.last:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1

    def _inside(self, word: object) -> bool:
        return isinstance(word, str | os.PathLike) and os.fspath(word).startswith(self.folder)


if __name__ == "__main__":
    main()
