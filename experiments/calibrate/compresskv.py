"""CompressKV: retrieval heads from needles in a text, layer errors from stretches of that text and of the documentation."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from experiments.calibrate.needles import runs, spread
from experiments.calibrate.text import Report, artefact, stretches
from experiments.tasks.chat import encode_plain
from experiments.tasks.text import Haystack
from experiments.text_splits import calibration_text
from kvjax.artefacts.artefact import Artefact
from kvjax.calibrate.compresskv import layer_errors, semantic_heads

#: Needles: `lengths` prompts of `shortest` to `length` tokens at `depths` depths, at most `steps` tokens decoded.
_NEEDLES = dict(length=2048, shortest=512, lengths=4, depths=5, steps=50)
#: Layer errors: `samples` prompts of `error_length` tokens a data set, cut to `budget` slots by the best `heads` of a layer; 0: an
#: eighth of its query heads, as the paper's 4 of 32.
_ERRORS = dict(samples=4, error_length=1024, error_steps=32, heads=0, budget=32, window=8)
DEFAULTS = _NEEDLES | _ERRORS


def calibrate(lm: Any, text: Haystack, settings: Mapping[str, Any], *, seed: int, progress: Report) -> Artefact:
    """Rank the query heads by needles in the text, then measure what a cut by the best of them costs each layer.

    Args:
        settings: as DEFAULTS.   seed: of where the needles' texts begin.   progress: called with (stage, done, total).

    Raises:
        ValueError: settings that leave nothing to measure, a text that is too short, a model that copies no answer.
    """
    settings = {**settings, "heads": settings["heads"] or eighth(lm)}
    _check(lm, settings)
    ids = encode_plain(lm, text.text)
    asked = list(runs(lm, ids, lengths=_lengths(settings), depths=np.linspace(0, 1, settings["depths"]), seed=seed))
    texts = list({x.digest: x for x in (text, calibration_text())}.values())
    cuts = (settings["samples"], settings["error_length"])
    datasets = [stretches(encode_plain(lm, found.text), *cuts) for found in texts]
    tables = semantic_heads(lm, asked, steps=settings["steps"], progress=partial(progress, "needles"))
    cut = {name: settings[name] for name in ("budget", "window")} | {"steps": settings["error_steps"]}
    heads = tables["srh"][:, : settings["heads"]]
    tables |= layer_errors(lm, datasets, heads, progress=partial(progress, "layer errors"), **cut)
    read = [*(run.prompt for run in asked), *(stretch for found in datasets for stretch in found)]
    return artefact("compresskv", lm, texts, read, {**settings, "seed": seed}, tables)


def eighth(lm: Any) -> int:
    """An eighth of the query heads of a layer, one at least: of 32 the paper's 4, of 9 one."""
    return max(1, round(lm.decoder.heads * lm.decoder.groups / 8))


def _lengths(settings: Mapping[str, Any]) -> list[int]:
    return spread(settings["shortest"], settings["length"], settings["lengths"])


def _check(lm: Any, settings: Mapping[str, Any]) -> None:
    """Raise ValueError for settings that would fail after minutes."""
    for name in ("samples", "shortest", "lengths", "depths", "heads", "steps", "error_steps"):
        if settings[name] < 1:
            raise ValueError(f"{name} must be at least 1, got {settings[name]}")
    if settings["length"] < settings["shortest"]:
        raise ValueError(f"length {settings['length']} is below the shortest prompt, {settings['shortest']}: --set shortest=N")
    chain = ("window", "budget", "error_length")
    if not 0 <= settings["window"] < settings["budget"] < settings["error_length"]:
        raise ValueError(f"expected {' < '.join(chain)}, so that something is cut; got {[settings[name] for name in chain]}")
    needed = max(settings["length"] + settings["steps"], settings["error_length"] + settings["error_steps"])
    if needed > lm.decoder.max_positions:
        raise ValueError(f"prompts and answers need {needed} positions, the model has {lm.decoder.max_positions}: lower --length")
