"""How many slots each layer and head got of one prompt: a panel a method, layers downwards."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments.pictures.canvas import COLOURS, SHADES, TALLEST, Picture, canvas, fitted, save, shade_key
from experiments.pictures.traced import file_of, groups, title_of, words_of
from experiments.rows import Row

#: Methods beside each other; each has two axes.
COLUMNS = 2


def draw(traces: Sequence[Row], folder: Path) -> list[Picture]:
    """Write a PNG for each model, task, length and budget; methods that keep everything have nothing to show."""
    pictures = []
    for name, found in groups(traces).items():
        path = folder / file_of("budgets", name)
        _draw(found, title_of(name), path)
        words = words_of(name, found)
        caption = f"Slots of each KV head as a share of the prompt, the mean of each layer as bars: {words}"
        pictures.append(Picture(path, caption, f"Budgets by layer and head: {words}"))
    return pictures


def _draw(traces: Sequence[Row], title: str, path: Path) -> None:
    lines = math.ceil(len(traces) / COLUMNS)
    shares = [np.array(trace["lengths"]) / trace["tokens"] for trace in traces]
    most = max(share.max() for share in shares)
    with canvas(min(TALLEST, 0.7 + 1.5 * lines), lines, 2 * COLUMNS, sharey=True) as (figure, axes):
        pairs = axes.reshape(-1, 2)
        for heat, bars in pairs[len(traces) :]:
            heat.set_axis_off()
            bars.set_axis_off()
        for (heat, bars), trace, share in zip(pairs, traces, shares, strict=False):
            heat.set_title(fitted(trace["policy"], 24), fontsize=7, loc="left", pad=3)
            image = _heads(heat, share, most)
            _layers(bars, share.mean(1), most)
        figure.supylabel("layer", fontsize=7)
        figure.suptitle(title, fontsize=8)
        shade_key(figure, image, axes, "share of the prompt kept")
        save(figure, path)


def _heads(axis, share: np.ndarray, most: float):
    image = axis.imshow(share, cmap=SHADES, vmin=0, vmax=most, aspect="auto", interpolation="nearest")
    axis.set_xlabel("KV head", fontsize=6, labelpad=1)
    axis.set_xticks(range(0, share.shape[1], math.ceil(share.shape[1] / 4)))
    axis.tick_params(labelsize=6)
    return image


def _layers(axis, means: np.ndarray, most: float) -> None:
    axis.barh(range(len(means)), means, height=1.0, color=COLOURS[0])
    axis.set_xlim(0, most)
    axis.set_xticks([0, most], ["0", f"{most:.2g}"])
    axis.set_xlabel("layer's mean", fontsize=6, labelpad=1)
    axis.tick_params(labelsize=6)
