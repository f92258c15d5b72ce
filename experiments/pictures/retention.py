"""Where in the text the slots of each layer lie: a panel a method, the prompt from left to right."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments.pictures.canvas import SHADES, TALLEST, Picture, canvas, fitted, save, shade_key
from experiments.pictures.traced import file_of, groups, title_of, words_of
from experiments.rows import Row

COLUMNS = 2


def draw(traces: Sequence[Row], folder: Path) -> list[Picture]:
    """Write a PNG for each model, task, length and budget; methods that keep everything have nothing to show."""
    pictures = []
    for name, found in groups(traces).items():
        path = folder / file_of("retention", name)
        _draw(found, title_of(name), path)
        words = words_of(name, found)
        caption = f"Share of the slots kept along the text, by layer, mean over heads: {words}"
        pictures.append(Picture(path, caption, f"What was kept along the text: {words}"))
    return pictures


def _draw(traces: Sequence[Row], title: str, path: Path) -> None:
    lines = math.ceil(len(traces) / COLUMNS)
    with canvas(min(TALLEST, 1.2 + 0.95 * lines), lines, COLUMNS, sharex=True, sharey=True) as (figure, axes):
        for axis in axes.flat[len(traces) :]:
            axis.set_axis_off()
        for axis, trace in zip(axes.flat, traces, strict=False):
            image = _panel(axis, np.array(trace["retention"]))
            axis.set_title(fitted(trace["policy"], 24), fontsize=7, loc="left", pad=3)
        for axis in axes.flat[max(0, len(traces) - COLUMNS) : len(traces)]:
            axis.tick_params(labelbottom=True)
            axis.set_xlabel("place in the prompt, %", fontsize=6, labelpad=1)
        figure.supylabel("layer", fontsize=7)
        figure.suptitle(title, fontsize=8)
        shade_key(figure, image, axes, "share kept")
        save(figure, path)


def _panel(axis, share: np.ndarray):
    layers = share.shape[0]
    box = (0, 100, layers - 0.5, -0.5)
    image = axis.imshow(share, cmap=SHADES, vmin=0, vmax=1, aspect="auto", interpolation="nearest", extent=box)
    axis.set_xticks([0, 50, 100])
    axis.tick_params(labelsize=6)
    return image
