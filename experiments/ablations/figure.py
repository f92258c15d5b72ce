"""The picture of an ablation: the paper's scores and ours as bars, a panel each."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

from experiments.ablations.ablation import Ablation, Variant  # noqa: E402
from experiments.ablations.compare import kind, mean_of_prompts, worths  # noqa: E402
from experiments.files import write_atomically
from experiments.rows import Row  # noqa: E402

#: Okabe and Ito's blue for the paper, vermilion for ours.
PAPER, OURS = "#0072B2", "#D55E00"


def draw(ablation: Ablation, variants: Sequence[Variant], rows: Sequence[Row], path: Path) -> Path:
    """Write the PNG: variants from top to bottom, the paper's mean score beside each of our tasks with 95% intervals."""
    found = worths(rows)
    panels = 1 + len(found)
    labels = [variant.label for variant in variants]
    with plt.rc_context({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False}):
        size = (2.0 + 1.9 * panels, 0.8 + 0.3 * len(labels))
        figure, axes = plt.subplots(1, panels, sharey=True, figsize=size, layout="constrained")
        _bars(axes[0], [variant.published for variant in variants], None, PAPER)
        axes[0].set_title("paper, mean score", fontsize=8)
        for axis, (task, by_label) in zip(axes[1:], found.items(), strict=True):
            estimates = [_estimate(task, by_label.get(label)) for label in labels]
            _bars(axis, [e and e.mean for e in estimates], estimates, OURS)
            axis.set_title("ppl, nats/token (less is better)" if kind(task) == "nats" else f"{task}, score %", fontsize=8)
        axes[0].set_yticks(range(len(labels)), labels)
        axes[0].invert_yaxis()
        figure.suptitle(ablation.title, fontsize=8)
        picture = BytesIO()
        figure.savefig(picture, dpi=200, format="png")
        plt.close(figure)
    return write_atomically(path, picture.getvalue())


def _estimate(task: str, by_prompt):
    if by_prompt is None:
        return None
    return mean_of_prompts(by_prompt, kind(task))


def _bars(axis, means, estimates, colour: str) -> None:
    known = [(i, m) for i, m in enumerate(means) if m is not None]
    if not known:
        return
    scale = 100 if estimates and all(e is None or e.high <= 1 for e in estimates) else 1
    axis.barh([i for i, _ in known], [scale * m for _, m in known], color=colour, height=0.6)
    values = [scale * m for _, m in known]
    if scale == 1:  # scores and nats: show the differences, not the distance to zero
        low, high = min(values), max(values)
        axis.set_xlim(low - 0.35 * (high - low + 1e-3), high + 0.2 * (high - low + 1e-3))
    else:
        axis.set_xlim(0, 104)
        for i, e in enumerate(estimates):
            if e is not None:
                axis.plot([scale * e.low, scale * e.high], [i, i], color="black", linewidth=0.8)
