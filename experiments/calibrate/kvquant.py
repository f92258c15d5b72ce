"""KVQuant: thresholds and levels from the keys, the values and the gradients of a few stretches of text."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from experiments.calibrate.text import Report, artefact, check_samples, stretches
from experiments.tasks.chat import encode_plain
from experiments.tasks.text import Haystack
from kvjax.artefacts.artefact import Artefact
from kvjax.calibrate.gradients import gradients_of
from kvjax.calibrate.kvquant import kvquant_tables

#: `samples` stretches of `length` tokens; levels of 2, 3 and 4 bits; the others as `kvquant_tables`.
DEFAULTS = dict(samples=8, length=1024, kept=0.99, each=1)
BITS = (2, 3, 4)


def calibrate(lm: Any, text: Haystack, settings: Mapping[str, Any], *, seed: int, progress: Report) -> Artefact:
    """Thresholds of the key channels, and levels weighted with squared gradients.

    Args:
        settings: as DEFAULTS.   seed: not used: nothing is drawn.   progress: called with (stage, done, total).

    Raises:
        ValueError: settings that do not fit the model, or a text that is too short.
    """
    del seed
    _check(lm, settings)
    prompts = stretches(encode_plain(lm, text.text), settings["samples"], settings["length"])
    found = gradients_of(lm, prompts, partial(progress, "gradients"), sinks=1)  # the first token stays exact
    fit = {name: settings[name] for name in ("kept", "each")}
    tables = kvquant_tables(found, bits=BITS, progress=partial(progress, "levels"), **fit)
    return artefact("kvquant", lm, [text], prompts, settings, tables)


def _check(lm: Any, settings: Mapping[str, Any]) -> None:
    """Raise ValueError for settings that would fail after the gradients are there."""
    check_samples(lm, settings)
    if not 0 < settings["kept"] <= 1:
        raise ValueError(f"kept is a share in (0, 1], got {settings['kept']}")
    if not 1 <= 2 * settings["each"] < lm.decoder.head_dim:
        raise ValueError(f"each side of {lm.decoder.head_dim} channels has 1 outlier or more, got each={settings['each']}")
