"""CompressKV: retrieval heads from needles in a text, layer errors from stretches of that text and of Python's help texts."""

from typing import Any

import numpy as np

from experiments.calibrate.needles import NEEDLES, runs, spread
from experiments.calibrate.samples import described, stretches, topics
from experiments.calibrate.work import Work
from experiments.tasks.chat import encode_plain
from experiments.tasks.text import Haystack, haystack
from kvjax.calibrate.artefact import Artefact, model_facts
from kvjax.calibrate.compresskv import layer_errors, semantic_heads


def calibrate(
    lm: Any, text: Haystack | None = None, *, samples: int = 4, length: int = 2048, seed: int = 0, shortest: int = 512,
    lengths: int = 4, depths: int = 5, heads: int = 4, budget: int = 32, window: int = 8, steps: int = 50, error_length: int = 1024,
    error_steps: int = 32, work: Work = Work(),
) -> Artefact:  # fmt: skip
    """Needles at `lengths` x `depths` rank the heads, whose best `heads` then cut `samples` prompts of each data set.

    Args:
        text: haystack and first data set; by default the essays.   samples: prompts a data set, of `error_length` tokens.
        length, shortest, lengths: longest and shortest prompts with needles, and how many lengths from one to the other.
        depths: how many, from the text's beginning to its end.   heads: that select, of each layer.
        budget, window: slots a layer is cut to, and the last tokens among them.
        steps, error_steps: most tokens decoded a needle, and a prompt of a data set.

    Raises:
        ValueError: settings that leave nothing to measure, a text that is too short, a model that copies no answer.
    """
    text = haystack() if text is None else text
    settings = dict(
        samples=samples, length=length, seed=seed, shortest=shortest, lengths=lengths, depths=depths, heads=heads, budget=budget,
        window=window, steps=steps, error_length=error_length, error_steps=error_steps,
    )  # fmt: skip
    _check(lm, settings)
    asked = list(
        runs(
            lm, encode_plain(lm, text.text), lengths=spread(shortest, length, lengths), depths=np.linspace(0, 1, depths), seed=seed
        )  # fmt: skip
    )
    sources = list({source.source: source for source in (text, topics())}.values())
    datasets = [stretches(lm, source.text, error_length, samples, seed) for source in sources]
    read = described([s.source for s in sources], [*(run.prompt for run in asked), *(ids for d in datasets for ids in d)])
    facts = model_facts(lm)
    needs = {"model": facts, "data": read, "settings": settings}
    found = work.keep("heads", needs, lambda: semantic_heads(lm, asked, steps=steps, progress=work.progress("needles")))

    def errors() -> dict[str, np.ndarray]:
        how = dict(budget=budget, window=window, steps=error_steps, progress=work.progress("layer errors"))
        return layer_errors(lm, datasets, found["srh"][:, :heads], **how)

    return Artefact("compresskv", facts, read, settings, found | work.keep("layers", needs, errors))


def _check(lm: Any, settings: dict[str, int]) -> None:
    """Raise ValueError for settings that would fail after minutes."""
    for name in ("samples", "lengths", "depths", "heads", "steps", "error_steps"):
        if settings[name] < 1:
            raise ValueError(f"{name} must be at least 1, got {settings[name]}")
    if settings["length"] < settings["shortest"]:
        raise ValueError(f"length {settings['length']} is below the shortest prompt of {settings['shortest']}: --set shortest=N")
    if not 0 <= settings["window"] < settings["budget"] < settings["error_length"]:
        raise ValueError(
            "expected window < budget < error_length, so that something is chosen and something cut; got "
            + ", ".join(f"{name}={settings[name]}" for name in ("window", "budget", "error_length"))
        )
    needed = max(settings["length"] + settings["steps"], settings["error_length"] + settings["error_steps"])
    if needed > lm.decoder.max_positions:
        raise ValueError(f"{len(NEEDLES)} needles need {needed} positions, the model has {lm.decoder.max_positions}: lower --length")
