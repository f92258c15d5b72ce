"""Codebooks fitted when an ablation asks for them, kept in kvjax's cache folder."""

from pathlib import Path
from typing import Any

import kvjax
from experiments.calibrate.hcattention import DEFAULTS, calibrate
from experiments.tasks.text import haystack
from kvjax.calibrate.artefact import load, save
from kvjax.home import cache_folder


def fitted(lm: Any, *, groups: int, centroids: int, shared: bool = False) -> Any:
    """HCAttention with tau = 1 over codebooks of this size, fitted now if they have not been fitted before."""
    name = f"{Path(lm.name).name}-g{groups}-c{centroids}" + ("-shared" if shared else "")
    folder = cache_folder() / "codebooks" / name
    if not folder.exists():
        settings = DEFAULTS | dict(groups=groups, centroids=centroids, shared=shared)
        save(calibrate(lm, haystack(), settings, seed=0, progress=lambda *_: None), folder)
    return kvjax.methods.hcattention(artefact=load(folder, "hcattention", lm), tau=1.0)
