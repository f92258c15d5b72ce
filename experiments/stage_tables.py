"""The built-in stages of every kind as tables of docs/stages.md, from their docstrings."""

import inspect
from types import ModuleType

import kvjax
from kvjax import schedule
from kvjax.encoder import Encoder
from kvjax.schedule import Schedule
from kvjax.stage import Allocator, Merger, Retriever, Scorer, Selector

#: The table of each mark: where the stages are, and what they are.
KINDS: dict[str, tuple[ModuleType, type]] = {
    "scorers": (kvjax.score, Scorer),
    "allocators": (kvjax.allocate, Allocator),
    "selectors": (kvjax.select, Selector),
    "mergers": (kvjax.merge, Merger),
    "encoders": (kvjax.encode, Encoder),
    "retrievers": (kvjax.retrieve, Retriever),
    "schedules": (schedule, Schedule),
}


def built_in(module: ModuleType, kind: type) -> list[type]:
    """The public stages of a kind, by name."""
    found = [x for name, x in vars(module).items() if inspect.isclass(x) and issubclass(x, kind) and not name.startswith("_")]
    return sorted({x for x in found if x is not kind}, key=lambda x: x.__name__)


def lines(mark: str) -> str:
    """The table of a kind: a stage, and the first line of its docstring."""
    found = built_in(*KINDS[mark])
    rows = [f"| `{x.__name__}` | {_cell(inspect.getdoc(x).partition(chr(10))[0])} |" for x in found]
    return "\n".join([f"| {len(found)} {mark} | what it is |", "| --- | --- |", *rows])


def _cell(line: str) -> str:
    """A docstring's first line, which is markdown, in a cell."""
    return line.replace("|", "\\|").replace("<", "&lt;")
