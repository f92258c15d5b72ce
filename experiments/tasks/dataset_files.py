"""What every reader of published data sets shares: where their files are kept on this machine, and what a row is."""

from pathlib import Path
from typing import Any

from kvjax.user_folder import cache_folder

Record = dict[str, Any]


def datasets_folder() -> Path:
    """`datasets` in KVJAX_CACHE, else in ~/.cache/kvjax."""
    return cache_folder() / "datasets"
