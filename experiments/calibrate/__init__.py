"""What each calibration reads: one file a method, `calibrate(lm, text, **settings)` → an Artefact.

The measuring is `kvjax.calibrate`; here are the prompts it is done on.
"""

from collections.abc import Callable
from importlib import import_module

METHODS = ("compresskv", "heterocache", "hcattention")


def find(method: str) -> Callable:
    """The `calibrate` of a method.

    Raises:
        ValueError: there is nothing to calibrate for it.
    """
    if method not in METHODS:
        raise ValueError(f"nothing to calibrate for {method!r}; known: {', '.join(METHODS)}")
    return import_module(f"experiments.calibrate.{method}").calibrate
