"""What a worker does: load the model once, measure a prompt, give back its rows.

All that goes to a worker is words and numbers, so that it means the same on another machine; nothing of JAX is sent or forked.
"""

import os
import traceback
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.executors.executor import InProcess, Work
from experiments.rows import Row

if TYPE_CHECKING:
    from experiments.sweep import Plan

#: (row, trace) of the cells of a prompt.
Rows = list[tuple[Row, Row | None]]
#: What measuring may raise that the user can mend.
_KNOWN = {kind.__name__: kind for kind in (ValueError, OSError, ImportError, FloatingPointError, MemoryError)}


@dataclass(frozen=True)
class Setup:
    """A sweep in the words of its command line.

    Attributes:
        folder: where it was started; paths in the other words are relative to it.
        model, dtype, text, tasks, question, lengths, policies, budgets, prompts, seeds, together, prefills: as typed.
        identity: what rows must share (`experiments.sweep.identity`), as the caller sees it.
    """

    folder: str
    model: str
    dtype: str
    text: str | None
    tasks: str
    question: str
    lengths: str
    policies: str
    budgets: str
    prompts: int
    seeds: str
    together: int
    prefills: str | None
    identity: tuple[tuple[str, str | int], ...]

    def ready(self) -> InProcess:
        """The model, the plan and the text.

        Raises:
            ValueError: they are not those of the caller.
        """
        import models
        from experiments.prefills import Afresh, Kept
        from experiments.sweep import identity
        from experiments.tasks.text import haystack

        text, lm = haystack(self.text and Path(self.text)), models.load(self.model, dtype=self.dtype)
        if (mine := identity(lm, text)) != dict(self.identity):
            raise ValueError(f"a worker has {mine}, the sweep {dict(self.identity)}: give all machines the same model and text")
        return InProcess(lm, self.plan(), text, Kept(Path(self.prefills)) if self.prefills else Afresh())

    def plan(self) -> "Plan":
        """What the words mean."""
        from experiments.commands.tasks import parse_tasks
        from experiments.plan_words import grid, parse_lengths, parse_seeds
        from experiments.sweep import Plan

        return Plan(
            tasks=parse_tasks(self.tasks, self.question),
            lengths=parse_lengths(self.lengths),
            policies=grid(self.policies, self.budgets),
            prompts=self.prompts,
            seeds=parse_seeds(self.seeds),
            together=self.together,
        )


@dataclass(frozen=True)
class Failure:
    """What was raised while a prompt was measured, as text: an exception of a library may not survive the way back."""

    kind: str
    message: str
    trace: str

    def error(self) -> Exception:
        """To be raised again; what is no user's mistake brings its traceback along."""
        if self.kind in _KNOWN:
            return _KNOWN[self.kind](self.message)
        return RuntimeError(f"a worker failed:\n{self.trace}")


def measure(setup: Setup, work: Work) -> Rows | Failure:
    """The rows of a work; a process loads the model at its first."""
    try:
        return list(_ready(setup).rows([work]))
    except Exception as error:  # whatever it is, the caller is to know
        kind = next((name for name, known in _KNOWN.items() if isinstance(error, known)), type(error).__name__)
        return Failure(kind, str(error) or type(error).__name__, traceback.format_exc())


@lru_cache(maxsize=1)
def _ready(setup: Setup) -> InProcess:
    try:
        os.chdir(setup.folder)
    except OSError as error:
        raise OSError(f"a worker lacks the folder of the sweep, {setup.folder}: start it where all machines see it") from error
    return setup.ready()
