"""Each task's score against the bytes allocated on the device: a panel a task, over the same axis of megabytes."""

from collections.abc import Sequence
from itertools import batched
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from experiments.full_cache import MB
from experiments.pictures.canvas import Picture, canvas, file_name, legend, legend_height, save, style
from experiments.report.tables import Line, Table

#: Panels of one picture; further tasks get a picture of their own.
PANELS = 4


def draw(table: Table, folder: Path) -> list[Picture]:
    """Write the PNGs of `table`: accuracy and perplexity under each other, so that both are seen at once.

    Policies that allocate the same bytes are spread sideways by 1.5% each, so that none hides another; bars are 95%
    intervals. The table has the exact bytes.
    """
    name = (Path(table.model).name, table.dtype, table.length)
    pictures = []
    for number, columns in enumerate(batched(table.columns, PANELS)):
        path = folder / file_name(*name, *([number + 1] if number else []))
        _draw(table, columns, path)
        pictures.append(Picture(path, _caption(table), _alt(table, columns)))
    return pictures


def _draw(table: Table, columns: Sequence[str], path: Path) -> None:
    policies = list(dict.fromkeys(line.policy for line in table.lines if line.policy != "full"))
    height = 1.85 * len(columns) + 0.6 + legend_height(["full cache", *policies])
    with canvas(height, len(columns), 1, sharex=True) as (figure, axes):
        for axis, name in zip(axes[:, 0], columns, strict=True):
            _panel(axis, table.lines, name, policies)
        _memory_axis(axes[-1, 0], table.lines)
        figure.suptitle(f"{table.model}, {table.length} tokens", fontsize=8)
        shown = {label: handle for axis in axes[:, 0] for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
        legend(figure, list(shown.values()), list(shown))
        save(figure, path)


def _caption(table: Table) -> str:
    return (
        f"Score against device memory allocated for the prompt, {table.length} tokens. Bars: 95% intervals as in table.md "
        "(Wilson's or Student's). Nats are those above the full cache on the same prompts. "
        "Policies of equal bytes stand a little apart."
    )


def _alt(table: Table, columns: Sequence[str]) -> str:
    policies = {line.policy for line in table.lines}
    return f"{' and '.join(columns)} against device megabytes for {', '.join(sorted(policies))}; the numbers are in the tables"


def _panel(axis: Axes, lines: Sequence[Line], name: str, policies: list[str]) -> None:
    for index, policy in enumerate(policies):
        found = sorted((x for x in lines if x.policy == policy and name in x.scores), key=lambda x: x.allocated)
        shift = 1.015 ** (index - (len(policies) - 1) / 2)
        _curve(axis, found, name, shift=shift, label=policy, **style(index))
    full = [x for x in lines if x.policy == "full" and name in x.scores]
    if full:
        level = 0.0 if _compared(lines, name) else _scale(full[0], name) * full[0].scores[name].estimate.mean
        axis.axhline(level, color="black", linewidth=0.8, linestyle=(0, (6, 3)), label="full cache")
    if any(x.scores[name].kind == "share" for x in lines if name in x.scores):
        axis.set_ylim(-4, 104)
        axis.set_ylabel(f"{name}\nscore %")
    else:
        axis.set_ylabel(f"{name}, nats per token\n{'above the full cache' if _compared(lines, name) else ''}".rstrip())
    axis.grid(alpha=0.25, linewidth=0.5)


def _curve(axis: Axes, lines: list[Line], name: str, *, shift: float, **how) -> None:
    if not lines:
        return
    scale = _scale(lines[0], name)
    x = [shift * line.allocated / MB for line in lines]
    y = [_middle(line, name, scale) for line in lines]
    bars = [[abs(end - mean) for mean, end in zip(y, ends, strict=True)] for ends in _ends(lines, name, scale)]
    axis.errorbar(x, y, yerr=bars, markersize=3.5, linewidth=1.1, elinewidth=0.6, capsize=1.2, **how)


def _ends(lines: list[Line], name: str, scale: float) -> list[tuple[float, ...]]:
    return list(zip(*(_band(line, name, scale) for line in lines), strict=True))


def _middle(line: Line, name: str, scale: float) -> float:
    """The score; of nats the loss against the full cache on the same prompts, since prompts differ more than policies."""
    score = line.scores[name]
    return scale * score.estimate.mean if score.excess is None else score.excess.mean


def _band(line: Line, name: str, scale: float) -> tuple[float, float]:
    """The 95% interval of `_middle`."""
    score = line.scores[name]
    found = score.estimate if score.excess is None else score.excess
    return scale * found.low, scale * found.high


def _compared(lines: Sequence[Line], name: str) -> bool:
    """Whether a column is drawn as the loss against the full cache."""
    return any(line.scores[name].excess is not None for line in lines if name in line.scores)


def _scale(line: Line, name: str) -> float:
    return 100.0 if line.scores[name].kind == "share" else 1.0


def _memory_axis(axis: Axes, lines: Sequence[Line]) -> None:
    axis.set_xscale("log")
    axis.set_xlabel(f"device MB allocated for the prompt (full: {lines[0].full / MB:.1f})")
    axis.xaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
