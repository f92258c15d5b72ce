"""LongProc's six tasks, whose answers are long procedures (Ye et al., 2025, arXiv 2501.05414), at 0.5k, 2k and 8k tokens.

Source: princeton-pli/LongProc, longproc/ and example_usage.py (tokens generated). Prompts are filled into the published
prompts.yaml that lies beside the data. We differ: a row may have more than the benchmark's accuracy: its partial_accuracy and
extraction_rate, by these names.
"""

from pathlib import Path

from experiments.tasks.dataset_files import datasets_folder
from experiments.tasks.datasets.longproc.countdown import Countdown
from experiments.tasks.datasets.longproc.html_to_tsv import HtmlToTsv
from experiments.tasks.datasets.longproc.path_traversal import PathTraversal
from experiments.tasks.datasets.longproc.procedure import Procedure
from experiments.tasks.datasets.longproc.pseudo_to_code import PseudoToCode
from experiments.tasks.datasets.longproc.tom_tracking import TomTracking
from experiments.tasks.datasets.longproc.travel_planning import TravelPlanning
from experiments.tasks.datasets.source import Local

KINDS: tuple[type[Procedure], ...] = (HtmlToTsv, PseudoToCode, PathTraversal, TomTracking, Countdown, TravelPlanning)


def tasks(folder: Path | None = None) -> tuple[Procedure, ...]:
    """All tasks and sizes, from `folder` (default: longproc in `datasets_folder()`), laid out as the repository's data/."""
    files = folder or datasets_folder() / "longproc"
    return tuple(
        kind(f"{kind.KIND}_{size}", Local(files / kind.KIND / kind.FILE.format(size=size)))
        for kind in KINDS
        for size in kind.SIZES
    )
