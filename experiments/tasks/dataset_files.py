"""What every reader of published data sets shares: where their files are kept on this machine, and what a row is."""

import os
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def datasets_folder() -> Path:
    """`datasets` in KVJAX_CACHE, else in ~/.cache/kvjax."""
    root = os.environ.get("KVJAX_CACHE") or Path.home() / ".cache" / "kvjax"
    return Path(root) / "datasets"
