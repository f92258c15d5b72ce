"""FASA: the frequencies of every query head that agree with all of them, by the last queries of a few stretches of text."""

from collections.abc import Mapping
from typing import Any

from experiments.calibrate.text import Report, artefact, check_samples, stretches
from experiments.tasks.chat import encode_plain
from experiments.tasks.text import Haystack
from kvjax.artefacts.artefact import Artefact
from kvjax.calibrate.dominant_pairs import dominant_pairs

#: `samples` stretches of `length` tokens; the others as `dominant_pairs`.
DEFAULTS = dict(samples=8, length=1024, count=16, tokens=256, queries=16, by_kv_head=False)


def calibrate(lm: Any, text: Haystack, settings: Mapping[str, Any], *, seed: int, progress: Report) -> Artefact:
    """The `count` frequency pairs of largest agreement. `seed` is not used: nothing is drawn.

    Raises:
        ValueError: settings that do not fit the model, or a text that is too short.
    """
    del seed
    _check(lm, settings)
    prompts = stretches(encode_plain(lm, text.text), settings["samples"], settings["length"])
    progress("frequencies", 0, 1)
    ranked = {name: settings[name] for name in ("count", "tokens", "queries", "by_kv_head")}
    pairs = dominant_pairs(lm, prompts, **ranked)
    progress("frequencies", 1, 1)
    return artefact("fasa", lm, [text], prompts, settings, {"pairs": pairs})


def _check(lm: Any, settings: Mapping[str, Any]) -> None:
    """Raise ValueError for settings that would say nothing."""
    check_samples(lm, settings)
    if not 1 <= settings["count"] <= lm.decoder.head_dim // 2:
        raise ValueError(f"count is 1 to {lm.decoder.head_dim // 2}, the frequencies of a head; got {settings['count']}")
    if not 1 <= settings["queries"] <= settings["length"]:
        raise ValueError(f"queries must be 1 to the length of {settings['length']}, got {settings['queries']}")
    if not 1 <= settings["tokens"] < settings["length"]:
        raise ValueError(f"tokens must be 1 to {settings['length'] - 1}, so that something is not read; got {settings['tokens']}")
