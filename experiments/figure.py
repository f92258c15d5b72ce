"""The picture of a table: each task's score against the bytes allocated, one panel a task, one text column wide."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: E402

from experiments.report import MB, Line, Table  # noqa: E402

#: Okabe and Ito's colours, told apart by all common kinds of colour vision; markers and dashes differ as well.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#7F7F7F")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
DASHES = ("-", "--", ":")
WIDTH = 3.5


def draw(table: Table, path: Path) -> Path:
    """Write the PNG of `table` to `path`: accuracy and perplexity under each other over the same axis of megabytes.

    Policies that allocate the same bytes are spread sideways by 1.5% each, so that none hides another; bars are 95%
    intervals. The table has the exact bytes.
    """
    policies = list(dict.fromkeys(line.policy for line in table.lines if line.policy != "full"))
    rows = -(-(len(policies) + 1) // 2)
    height = 1.85 * len(table.columns) + 0.16 * rows + 0.65
    with plt.rc_context({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False}):
        figure, axes = plt.subplots(
            len(table.columns), 1, sharex=True, figsize=(WIDTH, height), squeeze=False, layout="constrained"
        )
        for axis, name in zip(axes[:, 0], table.columns, strict=True):
            _panel(axis, table.lines, name, policies)
        _memory_axis(axes[-1, 0], table.lines)
        figure.suptitle(f"{table.model}, {table.length} tokens", fontsize=8)
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=7)
        figure.savefig(path, dpi=200)
        plt.close(figure)
    return path


def _panel(axis: Axes, lines: Sequence[Line], name: str, policies: list[str]) -> None:
    for index, policy in enumerate(policies):
        found = sorted((x for x in lines if x.policy == policy and name in x.scores), key=lambda x: x.allocated)
        style = dict(color=COLOURS[index % 7], marker=MARKERS[index % 10], linestyle=DASHES[index // 7 % 3])
        shift = 1.015 ** (index - (len(policies) - 1) / 2)
        _curve(axis, found, name, shift=shift, label=policy, **style)
    full = [x for x in lines if x.policy == "full" and name in x.scores]
    if full:
        level = _scale(full[0], name) * full[0].scores[name].estimate.mean
        axis.axhline(level, color="black", linewidth=0.8, linestyle=(0, (6, 3)), label="full cache")
    if any(x.scores[name].kind == "share" for x in lines if name in x.scores):
        axis.set_ylim(-4, 104)
        axis.set_ylabel(f"{name}\nscore %")
    else:
        axis.set_ylabel(f"{name}\nnats per token")
    axis.grid(alpha=0.25, linewidth=0.5)


def _curve(axis: Axes, lines: list[Line], name: str, *, shift: float, **style) -> None:
    if not lines:
        return
    scale = _scale(lines[0], name)
    x = [shift * line.allocated / MB for line in lines]
    y = [scale * line.scores[name].estimate.mean for line in lines]
    bars = [[abs(end - mean) for mean, end in zip(y, ends, strict=True)] for ends in _ends(lines, name, scale)]
    axis.errorbar(x, y, yerr=bars, markersize=3.5, linewidth=1.1, elinewidth=0.6, capsize=1.2, **style)


def _ends(lines: list[Line], name: str, scale: float) -> list[tuple[float, ...]]:
    return list(zip(*(_band(line, name, scale) for line in lines), strict=True))


def _band(line: Line, name: str, scale: float) -> tuple[float, float]:
    """The 95% interval; of nats that of the loss against the full cache, since prompts differ more than policies."""
    score = line.scores[name]
    if score.excess is None:
        return scale * score.estimate.low, scale * score.estimate.high
    base = score.estimate.mean - score.excess.mean
    return base + score.excess.low, base + score.excess.high


def _scale(line: Line, name: str) -> float:
    return 100.0 if line.scores[name].kind == "share" else 1.0


def _memory_axis(axis: Axes, lines: Sequence[Line]) -> None:
    axis.set_xscale("log")
    axis.set_xlabel(f"device MB allocated for the prompt (full: {lines[0].full / MB:.1f})")
    axis.xaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
