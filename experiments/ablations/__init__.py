"""One script for each ablation table of the four papers: `kvjax ablate NAME`, or `python -m experiments.ablations.NAME`.

A script names its variants, what the paper reports for each, and nothing else; `--model` runs it at any scale.
"""

from pathlib import Path

#: Files of this folder that are no ablation.
_SHARED = {"__init__", "ablation", "artefacts", "compare", "figure", "page", "run"}


def names() -> list[str]:
    """Every ablation, by its file name."""
    return sorted({path.stem for path in Path(__file__).parent.glob("*.py")} - _SHARED)
