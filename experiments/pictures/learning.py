"""What runs of training said at every step: how much was right, and the share of the cache that was kept."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.pictures.canvas import canvas, legend, legend_height, save, style

#: What `right` is called in a learner's terms, the first that is there.
RIGHT = ("reward", "accuracy")


def draw(logs: Mapping[str, Sequence[Mapping[str, float]]], path: Path) -> Path:
    """Write a PNG: above, the share of right answers of each run's batches; below, the share that was kept.

    Args:
        logs: lines of each run, by its name; "step", "kept" and one of RIGHT in each.
    """
    names = list(logs)
    with canvas(3.4 + legend_height(names), 2, 1, sharex=True) as (figure, axes):
        handles = []
        for number, lines in enumerate(logs.values()):
            steps, look = [line["step"] for line in lines], {**style(number), "marker": None, "linewidth": 1}
            handles += axes[0, 0].plot(steps, [right(line) for line in lines], **look)
            axes[1, 0].plot(steps, [line["kept"] for line in lines], **look)
        for axis, label in zip(axes[:, 0], ("right answers", "share kept"), strict=True):
            axis.set_ylabel(label, fontsize=7)
            axis.set_ylim(-0.04, 1.04)
            axis.tick_params(labelsize=6)
        axes[1, 0].set_xlabel("step", fontsize=7)
        legend(figure, handles, names)
        return save(figure, path)


def right(line: Mapping[str, float]) -> float:
    """A step's share of right answers.

    Raises:
        ValueError: its learner tells of none.
    """
    for name in RIGHT:
        if name in line:
            return line[name]
    raise ValueError(f"a line of a log with {', '.join(line)} tells nothing of right answers: {' or '.join(RIGHT)} is wanted")
