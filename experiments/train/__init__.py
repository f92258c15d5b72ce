"""`kvjax train`: one file a method, and the data it learns from in `experiments/train/data/`.

A method's file has DEFAULTS, the numbers that `--set` may change, DATA, the kind of data it is trained on where none is asked for,
and `learner(settings, budget)` → a `kvjax.train.Learner`. What is trained is the library's; this is the list of the command.
"""

from importlib import import_module
from pathlib import Path
from types import ModuleType

#: Files of this folder that are no method.
_SHARED = {"__init__", "answers", "merged", "random_model", "recalled", "record", "retrieval_heads", "served", "table"}


def names() -> list[str]:
    """Every method that can be trained, by its file name."""
    return sorted({path.stem for path in Path(__file__).parent.glob("*.py")} - _SHARED)


def find(method: str) -> ModuleType:
    """The file of a method.

    Raises:
        ValueError: there is none.
    """
    if method not in names():
        raise ValueError(f"nothing to train for {method!r}; known: {', '.join(names())}")
    return import_module(f"experiments.train.{method}")
