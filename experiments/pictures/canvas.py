"""What all pictures share: width, fonts, palette, names that fit, and files written whole."""

import io
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from experiments.files import write_atomically  # noqa: E402

#: Okabe and Ito's colours, told apart by all common kinds of colour vision; markers and dashes differ as well.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#7F7F7F")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
DASHES = ("-", "--", ":")
#: Inches of one text column; no picture is taller than a page.
WIDTH, TALLEST = 3.5, 9.0
#: Even in lightness and in print, and read alike by all common kinds of colour vision (Nuñez et al., 2018).
SHADES = "cividis"


@dataclass(frozen=True)
class Picture:
    """A PNG with what stands below it and what it shows in words."""

    path: Path
    caption: str
    alt: str


@contextmanager
def canvas(height: float, *shape: int, **how) -> Iterator[tuple[Figure, list[list[Axes]]]]:
    """A figure one column wide and `height` inches tall, with a grid of axes; closed whatever happens."""
    # names are no formulas, whatever dollars are in them
    with plt.rc_context({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False, "text.parse_math": False}):
        figure, axes = plt.subplots(*shape, figsize=(WIDTH, height), squeeze=False, layout="constrained", **how)
        try:
            yield figure, axes
        finally:
            plt.close(figure)


def save(figure: Figure, path: Path) -> Path:
    """Write the PNG: the old file or the new one is there, never half of one."""
    png = io.BytesIO()
    figure.savefig(png, dpi=200, format="png")
    return write_atomically(path, png.getvalue())


def style(index: int) -> dict[str, str]:
    """Colour, marker and dash of the curve with this number; the first 70 differ."""
    return dict(color=COLOURS[index % 7], marker=MARKERS[index % 10], linestyle=DASHES[index // 7 % 3])


def shade_key(figure: Figure, image, axes, label: str) -> None:
    """What the shades of `image` mean, below `axes`."""
    bar = figure.colorbar(image, ax=axes, location="bottom", shrink=0.8, aspect=40, pad=0.15 / figure.get_figheight())
    bar.set_label(label, fontsize=7)
    bar.ax.tick_params(labelsize=6)


def legend(figure: Figure, handles: Sequence, labels: Sequence[str]) -> None:
    """A legend below the axes, in as many columns as the longest name allows."""
    names = [fitted(label, 46, 1) for label in labels]
    figure.legend(handles, names, loc="outside lower center", ncols=legend_columns(labels), frameon=False, fontsize=7)


def legend_columns(labels: Sequence[str]) -> int:
    """2 columns, or 1 for long names."""
    return 2 if max(map(len, labels), default=0) <= 24 else 1


def legend_height(labels: Sequence[str]) -> float:
    """Inches that `legend` takes."""
    return 0.16 * math.ceil(len(labels) / legend_columns(labels)) + 0.1


def fitted(name: str, width: int, lines: int = 2) -> str:
    """`name` in at most `lines` lines of `width` characters; what does not fit is cut, with an ellipsis in its place."""
    spaced = re.sub(r"([,:])(?=\S)", r"\1 ", name)
    parts = textwrap.wrap(spaced, width) or [name]
    if len(parts) > lines:
        parts = [*parts[: lines - 1], parts[lines - 1][: width - 1] + "…"]
    return "\n".join(parts)


def brief(value: float) -> str:
    """Three digits, and no exponent for thousands."""
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def amount(budget: int | float) -> str:
    """A budget in words."""
    return f"{budget} slots a head" if isinstance(budget, int) else f"{100 * budget:g}% of the prompt"


def file_name(*parts: object) -> str:
    """A file name of letters, digits, dots and dashes."""
    return "-".join("".join(c if c.isalnum() or c in "-." else "-" for c in str(part)) for part in parts) + ".png"
