"""HCAttention: codebooks of the keys of a few stretches of text."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from experiments.calibrate.text import Report, artefact, stretches
from experiments.tasks.chat import encode_plain
from experiments.tasks.text import Haystack
from kvjax.artefacts.artefact import Artefact
from kvjax.calibrate.codebooks import collect_keys, fit_codebooks

#: `samples` stretches of `length` tokens; the others as `fit_codebooks`.
DEFAULTS = dict(samples=4, length=2048, groups=32, centroids=256, shared=False, max_iter=200, batch=10_000)


def calibrate(lm: Any, text: Haystack, settings: Mapping[str, Any], *, seed: int, progress: Report) -> Artefact:
    """Keys of stretches of the text, clustered for each layer, KV head and group of channels.

    Args:
        settings: as DEFAULTS.   seed: of the k-means.   progress: called with (stage, done, total).

    Raises:
        ValueError: settings that do not fit the model, or a text that is too short.
    """
    _check(lm, settings)
    fit = {name: x for name, x in settings.items() if name not in ("samples", "length")}
    prompts = stretches(encode_plain(lm, text.text), settings["samples"], settings["length"])
    keys = []
    for ids in prompts:
        keys.append(collect_keys(lm, [ids]))
        progress("keys", len(keys), len(prompts))
    tables = fit_codebooks(np.concatenate(keys, 2), seed=seed, progress=partial(progress, "codebooks"), **fit)
    return artefact("hcattention", lm, [text], prompts, {**settings, "seed": seed}, tables)


def _check(lm: Any, settings: Mapping[str, Any]) -> None:
    """Raise ValueError for settings that would fail after the keys are collected."""
    d = lm.decoder.head_dim
    for name in ("samples", "length", "groups", "max_iter", "batch"):
        if settings[name] < 1:
            raise ValueError(f"{name} must be at least 1, got {settings[name]}")
    if d % settings["groups"]:
        raise ValueError(f"groups must divide the head dimension {d}, got {settings['groups']}")
    if not 1 <= settings["centroids"] <= 1 << 16:
        raise ValueError(f"centroids must be 1 to 65536, got {settings['centroids']}")
    if settings["length"] > lm.decoder.max_positions:
        raise ValueError(f"length {settings['length']} is beyond the model's context of {lm.decoder.max_positions}: lower --length")
