"""InfiniGen: the rotation of every KV head that gathers what matters of its queries in few columns, by a few stretches of text."""

from collections.abc import Mapping
from typing import Any

from experiments.calibrate.text import Report, artefact, check_samples, stretches
from experiments.tasks.chat import encode_plain
from experiments.tasks.text import Haystack
from kvjax.artefacts.artefact import Artefact
from kvjax.calibrate.skew import skew

#: `samples` stretches of `length` tokens: the release takes 2,048 tokens of plain text.
DEFAULTS = dict(samples=8, length=1024)


def calibrate(lm: Any, text: Haystack, settings: Mapping[str, Any], *, seed: int, progress: Report) -> Artefact:
    """The right singular vectors of all queries. `seed` is not used: nothing is drawn.

    Raises:
        ValueError: settings that do not fit the model, or a text that is too short.
    """
    del seed
    check_samples(lm, settings)
    prompts = stretches(encode_plain(lm, text.text), settings["samples"], settings["length"])
    progress("queries", 0, 1)
    tables = {"skew": skew(lm, prompts)}
    progress("queries", 1, 1)
    return artefact("infinigen", lm, [text], prompts, settings, tables)
