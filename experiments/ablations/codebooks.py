"""Codebooks fitted when an ablation asks for them, kept in kvjax's cache folder."""

from pathlib import Path
from typing import Any

import kvjax
from experiments.calibrate.hcattention import DEFAULTS, calibrate
from experiments.console import progress, stages
from experiments.text_splits import calibration_text
from kvjax.artefacts.artefact import Artefact, built_in, load, resolve, save
from kvjax.user_folder import cache_folder


def fitted(lm: Any, *, groups: int, centroids: int, shared: bool = False) -> Any:
    """HCAttention with tau = 1 over codebooks of this size: built-in ones, else the kept ones, else fitted now and kept."""
    settings = DEFAULTS | dict(groups=groups, centroids=centroids, shared=shared)
    return kvjax.methods.hcattention(artefact=_built_in(lm, settings) or _kept(lm, settings), tau=1.0)


def _built_in(lm: Any, settings: dict[str, Any]) -> Artefact | None:
    """The library's own codebooks of this model, if they are of this size."""
    name = Path(lm.name).name
    if f"{name}/hcattention" not in built_in():
        return None
    found = resolve(name, "hcattention", lm)
    return found if found.settings == settings | dict(seed=0) else None


def _kept(lm: Any, settings: dict[str, Any]) -> Artefact:
    name = "{}-g{groups}-c{centroids}".format(Path(lm.name).name, **settings) + ("-shared" if settings["shared"] else "")
    folder = cache_folder() / "codebooks" / name
    if not folder.exists():
        with progress() as bar:
            save(calibrate(lm, calibration_text(), settings, seed=0, progress=stages(bar)), folder)
    return load(folder, "hcattention", lm)
