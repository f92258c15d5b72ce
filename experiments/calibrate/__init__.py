"""What each calibration reads: one file a method.

A file has DEFAULTS, its settings, and `calibrate(lm, text, settings, *, seed, progress)` → an Artefact. The
measuring is `kvjax.calibrate`; here are the prompts it is done on.
"""

from importlib import import_module
from pathlib import Path
from types import ModuleType

#: Files of this folder that are no method.
_SHARED = {"__init__", "needles", "text"}


def names() -> list[str]:
    """Every method that has something to calibrate, by its file name."""
    return sorted({path.stem for path in Path(__file__).parent.glob("*.py")} - _SHARED)


def find(method: str) -> ModuleType:
    """The calibration of a method.

    Raises:
        ValueError: there is none.
    """
    if method not in names():
        raise ValueError(f"nothing to calibrate for {method!r}; known: {', '.join(names())}")
    return import_module(f"experiments.calibrate.{method}")
