"""The seam between a sweep and those who measure it."""

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from experiments.prefills import Afresh, Kept
from experiments.rows import Row
from experiments.tasks.chat import encode_plain
from experiments.tasks.text import Haystack
from models import LanguageModel

if TYPE_CHECKING:
    from experiments.sweep import Plan


@dataclass(frozen=True)
class Work:
    """Prompts that are measured together and what to measure of them, in numbers that mean the same to whoever has the same plan.

    Attributes:
        indices, seed, length, task: of the prompts; `task` counts the plan's tasks.   cells: which of the plan's.
        trace: whether the traces of prompt 0 are wanted too.
    """

    indices: tuple[int, ...]
    seed: int
    length: int
    task: int
    cells: tuple[int, ...]
    trace: bool = False


class Executor(Protocol):
    """Measures prompts."""

    def rows(self, works: Iterable[Work]) -> Generator[tuple[Row, Row | None]]:
        """(row, trace) of every cell of every prompt, each once, in any order of prompts; the trace is None where there is none.

        Closing the generator ends what was started for it.

        Raises:
            ValueError, OSError, ImportError, MemoryError: as measuring raised it.
        """
        ...


@dataclass(frozen=True)
class InProcess:
    """This process, one work after the other; rows come as they are measured.

    Attributes:
        lm: the language model.   plan, text: as `experiments.sweep.run` takes them.   prefills: as there.
    """

    lm: LanguageModel
    plan: "Plan"
    text: Haystack
    prefills: Afresh | Kept = Afresh()

    def rows(self, works: Iterable[Work]) -> Generator[tuple[Row, Row | None]]:
        """Lazily: nothing is measured before it is asked for."""
        from experiments.sweep import measured

        for work in works:
            yield from measured(self, work)

    @cached_property
    def ids(self) -> list[int]:
        """The text's tokens, which prompts are cut from."""
        return encode_plain(self.lm, self.text.text)
