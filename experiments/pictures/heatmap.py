"""Needles found, by the depth they are hidden at and the length of the prompt: a panel a method."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from experiments.pictures.canvas import SHADES, TALLEST, Picture, amount, canvas, file_name, fitted, save, shade_key
from experiments.report.tables import column
from experiments.rows import Row

#: Equal parts of the prompt that depths drawn at random are put into.
PARTS = 5
COLUMNS = 3


def draw(rows: Sequence[Row], folder: Path) -> list[Picture]:
    """Write a PNG for each model, task and budget whose rows say where the needle was; `full` is in each for comparison."""
    pictures = []
    for (model, dtype, task, budget), found in _groups(rows).items():
        path = folder / file_name("depth", Path(model).name, dtype, task, budget)
        panels = _panels(found)
        _draw(found, panels, f"{model}\n{task}, {amount(budget)}", path)
        caption = f"{task} by depth of the needle and length of the prompt, {amount(budget)}: mean score in percent."
        pictures.append(Picture(path, caption, f"{caption} Methods: {', '.join(panels)}"))
    return pictures


def grid(rows: Sequence[Row]) -> tuple[list[float], list[int]]:
    """Lower edges of the depth bins (shares of the prompt; a last one ends them) and the lengths.

    Depths that recur prompt after prompt were chosen and have a bin each; depths drawn at random are put into five.
    """
    depths = sorted({row["depth"] for row in rows})
    prompts = {(row["length"], row["seed"], row["prompt"]) for row in rows}
    chosen = 1 < len(depths) < len(prompts) and len(depths) <= 21
    edges = [*depths, math.inf] if chosen else [i / PARTS for i in range(PARTS)] + [math.inf]
    return edges, sorted({row["length"] for row in rows})


def shares(rows: Sequence[Row], edges: Sequence[float], lengths: Sequence[int]) -> np.ndarray:
    """Mean score of each bin and length [bins, lengths]; NaN where there was no prompt."""
    total, count = np.zeros((2, len(edges) - 1, len(lengths)))
    for row in rows:
        at = int(np.searchsorted(edges, row["depth"], side="right")) - 1, lengths.index(row["length"])
        total[at] += row["score"]
        count[at] += 1
    return np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)


def _groups(rows: Sequence[Row]) -> dict[tuple, list[Row]]:
    """A group for each budget, the full cache's rows in every one."""
    found: dict[tuple, list[Row]] = {}
    deep = [row for row in rows if "depth" in row and "score" in row]
    for row in deep:
        if row["policy"] != "full":
            found.setdefault((row["model"], row["dtype"], column(row), row["budget"]), []).append(row)
    for row in deep:
        if row["policy"] == "full":
            for name in [name for name in found if name[:3] == (row["model"], row["dtype"], column(row))]:
                found[name].append(row)
    return found


def _panels(rows: Sequence[Row]) -> list[str]:
    names = {row["policy"] for row in rows}
    return sorted(names, key=lambda name: (name != "full", name))


def _draw(rows: Sequence[Row], panels: list[str], title: str, path: Path) -> None:
    edges, lengths = grid(rows)
    lines = math.ceil(len(panels) / COLUMNS)
    height = min(TALLEST, 1.15 + lines * (0.5 + 0.13 * (len(edges) - 1)))
    with canvas(height, lines, COLUMNS, sharex=True, sharey=True) as (figure, axes):
        for axis in axes.flat[len(panels) :]:
            axis.set_axis_off()
        for axis, policy in zip(axes.flat, panels, strict=False):
            image = _panel(axis, shares([row for row in rows if row["policy"] == policy], edges, lengths))
            axis.set_title(fitted(policy, 20), fontsize=6, pad=3)
        for axis in axes.flat[: len(panels)]:
            axis.tick_params(labelsize=6)
        for axis in axes.flat[max(0, len(panels) - COLUMNS) : len(panels)]:
            axis.tick_params(axis="x", labelbottom=True, rotation=45)
            axis.set_xlabel("tokens", fontsize=6, labelpad=1)
        axes[0, 0].set_xticks(range(len(lengths)), _thinned(map(_short, lengths), 4))
        axes[0, 0].set_yticks(range(len(edges) - 1), _thinned(_depths(edges), 6))
        figure.supylabel("depth of the needle", fontsize=7)
        figure.suptitle(title, fontsize=8)
        shade_key(figure, image, axes, "score %")
        save(figure, path)


def _panel(axis, values: np.ndarray):
    axis.set_facecolor("#dddddd")
    image = axis.imshow(100 * values, cmap=SHADES, vmin=0, vmax=100, aspect="auto")
    if values.shape[1] <= 4:
        for (i, j), value in np.ndenumerate(values):
            if not math.isnan(value):
                axis.text(j, i, f"{100 * value:.0f}", ha="center", va="center", fontsize=5, color="k" if value > 0.5 else "w")
    return image


def _depths(edges: Sequence[float]) -> list[str]:
    if edges[0] == 0 and len(edges) == PARTS + 1 and edges[1] == 1 / PARTS:
        return [f"{100 * i // PARTS}–{100 * (i + 1) // PARTS}%" for i in range(PARTS)]
    return [f"{100 * depth:.0f}%" for depth in edges[:-1]]


def _short(length: int) -> str:
    return f"{length // 1024}k" if length >= 1024 and length % 1024 == 0 else f"{length}"


def _thinned(labels: Iterator[str] | Sequence[str], most: int) -> list[str]:
    """At most `most` of the labels, evenly; the others empty."""
    labels = list(labels)
    step = math.ceil(len(labels) / most)
    return [label if i % step == 0 else "" for i, label in enumerate(labels)]
