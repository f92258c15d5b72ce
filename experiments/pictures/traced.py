"""Which traces share a picture."""

from collections.abc import Sequence
from pathlib import Path

from experiments.pictures.canvas import amount, file_name
from experiments.report.tables import column
from experiments.rows import Row


def groups(traces: Sequence[Row]) -> dict[tuple, list[Row]]:
    """(model, dtype, task, length, budget) -> traces of the methods that dropped something, by name."""
    found: dict[tuple, list[Row]] = {}
    for trace in sorted(traces, key=lambda trace: trace["policy"]):
        if any(slots < trace["tokens"] for layer in trace["lengths"] for slots in layer):
            name = (trace["model"], trace["dtype"], column(trace), trace["length"], trace["budget"])
            found.setdefault(name, []).append(trace)
    return dict(sorted(found.items(), key=lambda item: tuple(map(str, item[0]))))


def title_of(name: tuple) -> str:
    """Two lines: the model; the task, length and budget."""
    model, _, task, length, budget = name
    return f"{model}\n{task}, {length} tokens, {amount(budget)}"


def words_of(name: tuple, traces: Sequence[Row]) -> str:
    """The title on one line, with what the traces say of the prompt."""
    depth = next((f", needle at {100 * trace['depth']:.0f}% of the text" for trace in traces if "depth" in trace), "")
    return f"{title_of(name).replace(chr(10), ', ')}, prompt 0{depth}. Methods: {', '.join(trace['policy'] for trace in traces)}."


def file_of(kind: str, name: tuple) -> str:
    model, *rest = name
    return file_name(kind, Path(model).name, *rest)
