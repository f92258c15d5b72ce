"""Memory and speed as bars: of a sweep's cells, and of a benchmark's contestants."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.pictures.canvas import COLOURS, TALLEST, Picture, brief, canvas, file_name, fitted, save
from experiments.report.comparison import Comparison
from experiments.report.tables import MB

DEVICE, HOST, TIME = COLOURS[0], COLOURS[1], COLOURS[2]
#: What a benchmark's figures are measured in: title and factor of each.
UNITS = {
    "ms_per_token": ("ms per token", 1.0),
    "seconds": ("seconds", 1.0),
    "memory": ("MB", 1 / MB),
    "allocated_bytes": ("device MB", 1 / MB),
}
BATCHED = (
    "Times are medians of a sweep, which decodes cells in batches: each has its part, and few prompts count compilation. "
    "`kvjax bench` times methods alone."
)


def of_cells(found: Comparison, folder: Path) -> Picture:
    """Write the PNG of one task's cells: device and host memory, and milliseconds per token."""
    path = folder / file_name("bars", Path(found.model).name, found.dtype, found.task, found.length)
    labels = [e.policy if e.policy == "full" else f"{fitted(e.policy, 30, 1)} {e.budget}" for e in found.entries]
    memory = [(e.allocated / MB, e.host / MB) for e in found.entries]
    panels = [("MB", memory)]
    if all(e.token is not None for e in found.entries):
        panels.append((_title(found), [(1e3 * e.token,) for e in found.entries]))
    _draw(labels, panels, f"{found.model}, {found.task}, {found.length} tokens", path)
    caption = f"Memory of the compressed prompt and time a token: {found.task}, {found.length} tokens. {BATCHED}"
    return Picture(path, caption, f"{caption} The numbers are in the table.")


def _title(found: Comparison) -> str:
    """Says where a time is a part of a batch's."""
    return "ms per token" if all(e.batch <= 1 for e in found.entries) else "ms/token of a batch"


def of_bench(name: str, bench: Mapping[str, Any], folder: Path) -> Picture | None:
    """Write the PNG of one benchmark; None where it has nothing to draw."""
    panels = {title: values for title, values in _figures(bench) if values}
    if not panels:
        return None
    labels = list(dict.fromkeys(label for values in panels.values() for label in values))
    aligned = [(title, [values.get(label, ()) for label in labels]) for title, values in panels.items()]
    path = folder / file_name("bench", Path(name).stem)
    _draw(labels, aligned, f"{bench['bench']} ({bench['dtype']})\n{fitted(bench['shape'], 56)}", path)
    caption = f"{bench['bench']}, {bench['dtype']}: medians."
    words = "; ".join(f"{label} {'+'.join(map(brief, value))} {t}" for t, v in panels.items() for label, value in v.items())
    return Picture(path, caption, f"{caption} {words}")


def _figures(bench: Mapping[str, Any]) -> list[tuple[str, dict[str, tuple[float, ...]]]]:
    """(unit, contestant -> bar, or bars on top of each other)."""
    found = []
    for key, (title, factor) in UNITS.items():
        found.append((title, {label: (factor * _number(value),) for label, value in bench.get(key, {}).items()}))
    measured = {label: cell for label, cell in bench.get("cells", {}).items() if {"device_bytes", "host_bytes"} <= cell.keys()}
    cells = {label: (cell["device_bytes"] / MB, cell["host_bytes"] / MB) for label, cell in measured.items()}
    return [*found, ("MB", cells)] if cells else found


def _number(value: Any) -> float:
    return value["median"] if isinstance(value, Mapping) else value


def _draw(labels: Sequence[str], panels: Sequence[tuple[str, Sequence[tuple[float, ...]]]], title: str, path: Path) -> None:
    many = len(labels) > 30
    names = [fitted(label, 36, 1) if many else fitted(label, 26) for label in labels]
    lines = sum(1 + name.count("\n") for name in names)
    height = min(TALLEST, 0.85 + 0.2 * len(panels) + 0.17 * lines)
    with canvas(height, 1, len(panels), sharey=True) as (figure, axes):
        for axis, (unit, values) in zip(axes[0], panels, strict=True):
            _bars(axis, unit, values)
        axes[0, 0].set_yticks(range(len(names)), names, fontsize=5 if many else 7)
        axes[0, 0].set_ylim(len(names) - 0.4, -0.6)
        figure.suptitle(title, fontsize=8)
        if any(len(value) > 1 and value[1] for _, values in panels for value in values):
            handles = [figure.axes[0].barh([0], [0], color=colour) for colour in (DEVICE, HOST)]
            figure.legend(handles, ["device", "host"], loc="outside lower center", ncols=2, frameon=False, fontsize=7)
        save(figure, path)


def _bars(axis, unit: str, values: Sequence[tuple[float, ...]]) -> None:
    memory = unit.endswith("MB")
    for at, value in enumerate(values):
        left = 0.0
        for part, colour in zip(value, (DEVICE, HOST) if memory else (TIME,), strict=False):
            axis.barh(at, part, left=left, height=0.7, color=colour)
            left += part
        if value:
            axis.text(left, at, f" {brief(left)}", va="center", fontsize=5.5)
    axis.set_xlabel(unit, fontsize=7)
    axis.margins(x=0.28)
    axis.set_xlim(left=0)
    axis.tick_params(axis="x", labelsize=6)
