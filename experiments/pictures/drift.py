"""How far each pivot's focus moved while decoding, and where that had satellites fetched (HeteroCache)."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments.pictures.canvas import COLOURS, SHADES, TALLEST, Picture, amount, canvas, file_name, fitted, save, shade_key
from experiments.report.tables import column
from experiments.rows import Row


def draw(traces: Sequence[Row], folder: Path) -> list[Picture]:
    """Write a PNG for each trace in which a window was judged: the median over pivots, below it every pivot's windows."""
    pictures = []
    for trace in traces:
        medians = overlaps(trace)
        if np.isnan(medians).all():
            continue
        task, length, budget = column(trace), trace["length"], trace["budget"]
        path = folder / file_name("drift", Path(trace["model"]).name, trace["dtype"], trace["policy"], task, length, budget)
        title = f"{trace['policy']}, {amount(budget)}\n{trace['model']}, {task}, {length} tokens"
        _draw(trace, medians, title, path)
        pictures.append(Picture(path, _caption(trace, medians), f"Drift of {len(medians)} pivots: {title}"))
    return pictures


def overlaps(trace: Row) -> np.ndarray:
    """Median overlap of each pivot and window [p, c]; NaN where none was judged, empty where the method has no pivots."""
    return np.array(trace.get("drift", {}).get("medians", []), dtype=float)


def triggers(trace: Row) -> np.ndarray:
    """bool [p, c]: windows that had satellites fetched, median < theta."""
    return overlaps(trace) < trace["drift"]["theta"]


def _caption(trace: Row, medians: np.ndarray) -> str:
    drift, fired, judged = trace["drift"], int(triggers(trace).sum()), int((~np.isnan(medians)).sum())
    return (
        f"Overlap of each pivot's focus with its reference, median of each window of {drift['w']} queries. Dots: below theta = "
        f"{drift['theta']:.2g}, so that the satellites were fetched ({fired} of {judged} windows judged; {sum(drift['refreshes'])} "
        f"fetches arrived). {trace['policy']} at {amount(trace['budget'])}, {column(trace)}, prompt 0."
    )


def _draw(trace: Row, medians: np.ndarray, title: str, path: Path) -> None:
    pivots, windows = medians.shape
    first = trace["drift"]["first"]
    tall = min(TALLEST - 2.2, max(1.2, 0.09 * pivots))
    with canvas(2.2 + tall, 2, 1, sharex=True, height_ratios=[0.9, tall]) as (figure, axes):
        _means(axes[0, 0], medians, trace["drift"]["theta"], first)
        box = (first - 0.5, first + windows - 0.5, pivots - 0.5, -0.5)
        image = axes[1, 0].imshow(medians, cmap=SHADES, vmin=0, vmax=1, aspect="auto", interpolation="nearest", extent=box)
        axes[1, 0].set_facecolor("#dddddd")
        at, window = np.nonzero(triggers(trace))
        axes[1, 0].scatter(first + window, at, s=9, c="white", edgecolors=COLOURS[3], linewidths=0.8)
        step = math.ceil(pivots / 20)
        names = [f"{layer}.{head}" for layer, head in trace["drift"]["pivots"]]
        axes[1, 0].set_yticks(range(0, pivots, step), names[::step], fontsize=6)
        axes[1, 0].set_ylabel("pivot (layer.head)", fontsize=7)
        axes[1, 0].set_xlabel(f"window of {trace['drift']['w']} queries", fontsize=7)
        axes[1, 0].tick_params(labelsize=6)
        axes[1, 0].xaxis.get_major_locator().set_params(integer=True)
        shade_key(figure, image, axes[1, 0], "median overlap with the reference")
        figure.suptitle("\n".join(fitted(line, 56) for line in title.split("\n")), fontsize=8)
        save(figure, path)


def _means(axis, medians: np.ndarray, theta: float, first: int) -> None:
    seen = ~np.isnan(medians).all(axis=0)
    x = first + np.nonzero(seen)[0]
    low, middle, high = np.nanquantile(medians[:, seen], (0.1, 0.5, 0.9), axis=0)
    axis.fill_between(x, low, high, color=COLOURS[0], alpha=0.2, linewidth=0, label="10–90%")
    axis.plot(x, middle, color=COLOURS[0], marker=".", markersize=3, linewidth=1, label="median of pivots")
    axis.axhline(theta, color=COLOURS[3], linestyle="--", linewidth=0.8, label="theta")
    axis.set_ylim(-0.04, 1.04)
    axis.set_ylabel("overlap", fontsize=7)
    axis.tick_params(labelsize=6)
    axis.legend(fontsize=6, frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0), borderaxespad=0.1)
