"""A step in a log: numbers by name."""

from kvjax.train.learner import Graded

#: "step", "loss", "kept" and the terms of the loss.
Line = dict[str, int | float]


def line_of(step: int, graded: Graded) -> Line:
    """What a step said, as numbers."""
    terms = {name: float(x) for name, x in graded.terms.items()}
    return {"step": step, "loss": float(graded.loss), "kept": float(graded.kept), **terms}
