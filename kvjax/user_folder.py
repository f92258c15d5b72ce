"""Where what was fetched, fitted or compiled once is kept."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """$KVJAX_CACHE, else ~/.cache/kvjax; it may not exist yet."""
    return Path(os.environ.get("KVJAX_CACHE") or "~/.cache/kvjax").expanduser()
