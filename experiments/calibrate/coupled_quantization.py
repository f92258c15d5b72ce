"""Coupled quantization: codebooks of a few channels each, of keys and of values, from stretches of text."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from experiments.calibrate.text import Report, artefact, check_samples, stretches
from experiments.tasks.chat import encode_plain
from experiments.tasks.text import Haystack
from kvjax.artefacts.artefact import Artefact
from kvjax.calibrate.coupled import coupled_codebooks
from kvjax.calibrate.gradients import gradients_of

#: `samples` stretches of `length` tokens; the others as `coupled_codebooks`.
DEFAULTS = dict(samples=8, length=1024, channels=4, bits=8, fisher=True, max_iter=100)


def calibrate(lm: Any, text: Haystack, settings: Mapping[str, Any], *, seed: int, progress: Report) -> Artefact:
    """Keys before the rotary embedding, values, and gradients at both; then clusters of `channels` contiguous channels.

    Args:
        settings: as DEFAULTS.   seed: of the k-means.   progress: called with (stage, done, total).

    Raises:
        ValueError: settings that do not fit the model, or a text that is too short.
    """
    _check(lm, settings)
    prompts = stretches(encode_plain(lm, text.text), settings["samples"], settings["length"])
    found = gradients_of(lm, prompts, partial(progress, "gradients"), sinks=0)  # every token is coded
    fit = {name: x for name, x in settings.items() if name not in ("samples", "length")}
    tables = coupled_codebooks(found, seed=seed, progress=partial(progress, "codebooks"), **fit)
    return artefact("coupled_quantization", lm, [text], prompts, {**settings, "seed": seed}, tables)


def _check(lm: Any, settings: Mapping[str, Any]) -> None:
    """Raise ValueError for settings that would fail after the gradients are there."""
    d, channels, bits = lm.decoder.head_dim, settings["channels"], settings["bits"]
    check_samples(lm, settings)
    if channels < 1 or d % channels or d // channels * bits % 8:
        raise ValueError(f"channels must divide the head dimension {d}, its codes fill bytes; got {channels} of {bits} bits")
    if not 1 <= bits <= 16 or settings["max_iter"] < 1:
        raise ValueError(f"a code has 1 to 16 bits, and the k-means 1 update or more; got {bits} and {settings['max_iter']}")
