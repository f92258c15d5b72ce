"""lm-eval's results as a table of our own: its own prints A, B, C as its headers with the packages it asks for."""

from collections.abc import Iterator, Mapping
from typing import Any

from experiments.markdown_table import table

_HEADS = ("task", "version", "filter", "shots", "metric", "value", "standard error")


def markdown(found: Mapping[str, Any]) -> str:
    """A line for each task and metric of what `lm_eval.simple_evaluate` returned."""
    return "\n".join(table(_HEADS, list(_lines(found)), texts=5))


def _lines(found: Mapping[str, Any]) -> Iterator[list[str]]:
    for task, measured in found["results"].items():
        shown = [str(part.get(task, "-")) for part in (found.get("versions", {}), found.get("n-shot", {}))]
        for name in sorted(measured):
            metric, comma, kind = name.partition(",")
            if comma and not metric.endswith("_stderr"):
                error = measured.get(f"{metric}_stderr,{kind}")
                yield [measured.get("alias", task), shown[0], kind, shown[1], metric, _digits(measured[name]), _digits(error)]


def _digits(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) and value == value else "-" if value in (None, "N/A") else str(value)
