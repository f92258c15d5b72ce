"""MInference: a sparse pattern for each query head, chosen on one stretch of text."""

from collections.abc import Mapping
from typing import Any

from experiments.calibrate.text import Report, artefact, stretches
from experiments.tasks.chat import encode_plain
from experiments.tasks.text import Haystack
from kvjax.artefacts.artefact import Artefact
from kvjax.calibrate.minference import CANDIDATES, assign, scaled

#: One stretch of `length` tokens; queries from `first` on are counted (at most the last half); the released candidates' sizes times
#: `scale`, for prompts shorter than the 30,000 tokens they were made for; `rewritten`: as the released files.
DEFAULTS = dict(samples=1, length=8192, first=2500, scale=1.0, rewritten=False)


def calibrate(lm: Any, text: Haystack, settings: Mapping[str, Any], *, seed: int, progress: Report) -> Artefact:
    """The pattern of each head that holds most of its attention. `seed` is not used: nothing is drawn.

    Raises:
        ValueError: settings that do not fit the model, or a text that is too short.
    """
    del seed
    if settings["samples"] != 1:
        raise ValueError(f"the search reads one sample; got samples={settings['samples']}")
    if not 1 <= settings["length"] <= lm.decoder.max_positions:
        raise ValueError(f"length must be 1 to {lm.decoder.max_positions}, the model's context; got {settings['length']}")
    if not settings["scale"] > 0:
        raise ValueError(f"scale must be above 0; got {settings['scale']}")
    prompts = stretches(encode_plain(lm, text.text), 1, settings["length"])
    progress("patterns", 0, 1)
    first = min(settings["first"], settings["length"] // 2)
    candidates = [scaled(pattern, settings["scale"]) for pattern in CANDIDATES]
    found = assign(lm, prompts[0], candidates, first=first, rewritten=settings["rewritten"])
    progress("patterns", 1, 1)
    return artefact("minference", lm, [text], prompts, {**settings, **found.settings}, found.tables)
