"""What methods are trained on: one file a kind of data.

A file has `examples(lm, text, *, count, length, seed)` → a list of `kvjax.train.Example`, each at most `length` tokens, and
READS_TEXT = False where tokens are drawn at random; `text` is the split's name then.
"""

from importlib import import_module
from pathlib import Path
from types import ModuleType


def kinds() -> list[str]:
    """Every kind of data, by its file name."""
    return sorted({path.stem for path in Path(__file__).parent.glob("*.py")} - {"__init__"})


def find(kind: str) -> ModuleType:
    """The file of a kind.

    Raises:
        ValueError: there is none.
    """
    if kind not in kinds():
        raise ValueError(f"no data of kind {kind!r}; known: {', '.join(kinds())}")
    return import_module(f"experiments.train.data.{kind}")


def reads_text(kind: str) -> bool:
    """Whether texts of this kind are made of other texts, by a tokenizer."""
    return vars(find(kind)).get("READS_TEXT", True)
