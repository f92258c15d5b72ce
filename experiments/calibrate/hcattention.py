"""HCAttention: codebooks of the keys of a few stretches of text."""

from typing import Any

import numpy as np

from experiments.calibrate.samples import described, stretches
from experiments.calibrate.work import Work
from experiments.tasks.text import Haystack, haystack
from kvjax.calibrate.artefact import Artefact, model_facts
from kvjax.calibrate.codebooks import collect_keys, fit_codebooks


def calibrate(
    lm: Any, text: Haystack | None = None, *, samples: int = 12, length: int = 2048, seed: int = 0, groups: int = 32,
    centroids: int = 256, shared: bool = False, max_iter: int = 200, batch: int = 10_000, work: Work = Work(),
) -> Artefact:  # fmt: skip
    """Keys of `samples` stretches of `length` tokens, clustered layer by layer.

    Args:
        text: by default the essays.   groups, centroids, shared, max_iter, batch: as `fit_codebooks`.
        seed: of the stretches and of the k-means.

    Raises:
        ValueError: settings that do not fit the model, or a text that is too short.
    """
    text = haystack() if text is None else text
    settings = dict(
        samples=samples, length=length, seed=seed, groups=groups, centroids=centroids, shared=shared, max_iter=max_iter, batch=batch
    )  # fmt: skip
    _check(lm, settings)
    prompts = stretches(lm, text.text, length, samples, seed)
    read, facts = described([text.source], prompts), model_facts(lm)
    how = {name: settings[name] for name in ("groups", "centroids", "shared", "seed", "max_iter", "batch")}
    keys, layers = [], []
    for done, ids in enumerate(prompts, 1):
        keys.append(collect_keys(lm, [ids]))
        work.report("keys", done, samples)
    keys = np.concatenate(keys, 2)
    for layer in range(len(keys)):
        needs = {"model": facts, "data": read, "settings": settings, "layer": layer}
        layers.append(work.keep(f"layer{layer}", needs, lambda at=layer: fit_codebooks(keys[at : at + 1], **how)))
        work.report("codebooks", layer + 1, len(keys))
    tables = {name: np.concatenate([part[name] for part in layers]) for name in layers[0]}
    return Artefact("hcattention", facts, read, settings, tables)


def _check(lm: Any, settings: dict[str, int]) -> None:
    """Raise ValueError for settings that would fail after the keys are collected."""
    d, groups, centroids = lm.decoder.head_dim, settings["groups"], settings["centroids"]
    if groups < 1 or d % groups:
        raise ValueError(f"groups must divide the head dimension {d}, got {groups}")
    if not 1 <= centroids <= 1 << 16:
        raise ValueError(f"centroids must be 1 to 65536, got {centroids}")
    if settings["max_iter"] < 1 or settings["batch"] < 1:
        raise ValueError(f"max_iter and batch must be at least 1, got {settings['max_iter']} and {settings['batch']}")
