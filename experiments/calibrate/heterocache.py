"""HeteroCache: roles of the KV heads from a few stretches of text."""

from collections.abc import Mapping
from typing import Any

from experiments.calibrate.text import Report, artefact, stretches
from experiments.tasks.chat import encode_plain
from experiments.tasks.text import Haystack
from kvjax.artefacts.artefact import Artefact
from kvjax.calibrate.heterocache import head_roles
from kvjax.score import AvgPool

#: `samples` stretches of `length` tokens (n_cal), pooled over `kappa` tokens; the others as `head_roles`.
DEFAULTS = dict(samples=4, length=2048, k=256, kappa=5, steps=64, theta_stab=0.5, theta_sim=0.5, least=0.0)


def calibrate(lm: Any, text: Haystack, settings: Mapping[str, Any], *, seed: int, progress: Report) -> Artefact:
    """Where each KV head looks after stretches of the text, while the model goes on with them.

    Args:
        settings: as DEFAULTS.   seed: not used: the stretches are evenly spaced, and decoding is greedy.
        progress: called with (stage, done, total).

    Raises:
        ValueError: settings that leave nothing to measure, or a text that is too short.
    """
    del seed
    _check(lm, settings)
    how = {name: x for name, x in settings.items() if name not in ("samples", "length", "kappa")}
    prompts = stretches(encode_plain(lm, text.text), settings["samples"], settings["length"])
    tables = head_roles(lm, prompts, pool=AvgPool(settings["kappa"]), progress=lambda *at: progress("samples", *at), **how)
    return artefact("heterocache", lm, [text], prompts, settings, tables)


def _check(lm: Any, settings: Mapping[str, Any]) -> None:
    """Raise ValueError for settings that would fail after the first sample, or give tables that mean nothing."""
    for name in ("samples", "k", "kappa", "steps"):
        if settings[name] < 1:
            raise ValueError(f"{name} must be at least 1, got {settings[name]}")
    if settings["length"] <= settings["k"]:
        raise ValueError(f"length {settings['length']} says nothing about the best k={settings['k']}: raise --length above k")
    for name in ("theta_stab", "theta_sim", "least"):
        if not 0 <= settings[name] <= 1:
            raise ValueError(f"{name} is an overlap in [0, 1], got {settings[name]}")
    needed = settings["length"] + settings["steps"]
    if needed > lm.decoder.max_positions:
        raise ValueError(f"samples and steps need {needed} positions, the model has {lm.decoder.max_positions}: lower --length")
