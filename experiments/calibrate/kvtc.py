"""KVTC: a basis and bits of components from the keys and the values of a few stretches of text."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from experiments.calibrate.text import Report, artefact, stretches
from experiments.tasks.chat import encode_plain
from experiments.tasks.text import Haystack
from kvjax.artefacts.artefact import Artefact
from kvjax.calibrate.kvtc import cached_tokens, kvtc_tables

#: `samples` stretches of `length` tokens, their first `sinks` left out; the others as `kvtc_tables`.
DEFAULTS = dict(samples=8, length=1024, sinks=4, ratios=(8, 16, 32), measured=2048)


def calibrate(lm: Any, text: Haystack, settings: Mapping[str, Any], *, seed: int, progress: Report) -> Artefact:
    """Keys before the rotary embedding and values, their principal components, and bits for each ratio.

    Args:
        settings: as DEFAULTS.   seed: not used: nothing is drawn.   progress: called with (stage, done, total).

    Raises:
        ValueError: settings that do not fit the model, or a text that is too short.
    """
    del seed
    _check(lm, settings)
    prompts = stretches(encode_plain(lm, text.text), settings["samples"], settings["length"])
    keys, values = cached_tokens(lm, prompts, sinks=settings["sinks"], progress=partial(progress, "keys and values"))
    fit = {name: settings[name] for name in ("ratios", "measured")}
    tables = kvtc_tables(keys, values, progress=partial(progress, "bits"), **fit)
    return artefact("kvtc", lm, [text], prompts, settings, tables)


def _check(lm: Any, settings: Mapping[str, Any]) -> None:
    """Raise ValueError for settings that would fail after the keys are there."""
    length, sinks, most = settings["length"], settings["sinks"], lm.decoder.max_positions
    if settings["samples"] < 1 or not 2 <= length <= most or not 0 <= sinks <= length - 2 or settings["measured"] < 1:
        raise ValueError(f"expected samples of 2 to {most} tokens, 2 or more of them after the sinks, got {dict(settings)}")
    bits, ratios = 16 * lm.decoder.heads * lm.decoder.head_dim, settings["ratios"]
    if not ratios or any(type(r) is not int or not 1 <= r <= bits // 34 for r in ratios):
        raise ValueError(f"ratios are integers from 1 to {bits // 34}, at which a token's {bits} bits hold one code; got {ratios}")
