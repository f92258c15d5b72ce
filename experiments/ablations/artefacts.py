"""Artefacts of any model for an ablation: given, built in, kept from before, or calibrated now and kept in kvjax's cache folder."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from experiments.calibrate import find
from experiments.console import progress, stages
from experiments.passages import Hashes, hashes, shared
from experiments.provenance import digest
from experiments.text_splits import calibration_text
from kvjax.artefacts.artefact import Artefact, built_in, load, model_facts, resolve, save
from kvjax.user_folder import cache_folder
from kvjax.weights_mark import mark_of


@dataclass(frozen=True)
class Calibrated:
    """The artefacts of one model.

    Attributes:
        lm: the language model.   given: artefacts of `--artefact`, by method; they go before all others.
        evaluated: the text that prompts are cut from; a built-in artefact that read of it is passed over.
    """

    lm: Any
    given: Mapping[str, Artefact] = field(default_factory=dict)
    evaluated: str = ""

    def __call__(self, method: str, **changes: Any) -> Artefact:
        """The first that fits the model and has the changes among its settings.

        Raises:
            ValueError: calibrating fails, as `kvjax calibrate` says.
        """
        for found in self._ready(method):
            if all(found.settings.get(name) == value for name, value in changes.items()):
                return found
        return self._kept(method, fitted_to(self.lm, method, changes))

    def _ready(self, method: str) -> Iterator[Artefact]:
        if method in self.given:
            yield self.given[method]
        name = Path(self.lm.name).name
        if f"{name}/{method}" in built_in():
            try:
                found = resolve(name, method, self.lm)
            except ValueError:  # another model of that name
                return
            if found.passages and not shared(found.passages, self._evaluated):
                yield found

    @cached_property
    def _evaluated(self) -> Hashes:
        return hashes(self.evaluated)

    def _kept(self, method: str, settings: Mapping[str, Any]) -> Artefact:
        text = calibration_text()
        folder = self.folder(method, settings, text.text)
        if not folder.exists():
            with progress() as bar:
                found = find(method).calibrate(self.lm, text, settings, seed=0, progress=stages(bar))
            save(found, folder)
        return load(folder, method, self.lm)

    def folder(self, method: str, settings: Mapping[str, Any], text: str) -> Path:
        """Where an artefact is kept: told apart by the model's sizes and weights, the settings and the text that it read."""
        facts = [model_facts(self.lm), int(mark_of(self.lm.params)), digest([text.encode()]), dict(settings)]
        told = json.dumps(facts, sort_keys=True).encode()
        name = f"{Path(self.lm.name).name}-{method}-{hashlib.sha256(told).hexdigest()[:12]}"
        return cache_folder() / "artefacts" / name


def given(folders: Sequence[Path], lm: Any) -> dict[str, Artefact]:
    """method → artefact of folders that a user names.

    Raises:
        ValueError: one of another model, or two of one method.   FileNotFoundError: no artefact there.
    """
    found: dict[str, Artefact] = {}
    for folder in folders:
        artefact = load(folder, lm=lm)
        if artefact.method in found:
            raise ValueError(f"--artefact is given twice for {artefact.method}: name one folder for each method")
        found[artefact.method] = artefact
    return found


def fitted_to(lm: Any, method: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """A calibration's defaults with changes, smaller where the model is: shorter samples, groups of two channels.

    Ten keys a centroid are read at least.
    """
    settings, d = dict(find(method).DEFAULTS), lm.decoder
    more = max(settings.get("steps", 0), settings.get("error_steps", 0))
    for name in ("length", "shortest", "error_length"):
        if name in settings:
            settings[name] = min(settings[name], d.max_positions - more)
    if "k" in settings:
        settings["k"] = min(settings["k"], settings["length"] // 8)
    if "groups" in settings:
        settings["groups"] = d.head_dim // 2
    settings |= changes
    if "centroids" in settings:
        settings["samples"] = max(settings["samples"], -(-10 * settings["centroids"] // settings["length"]))
    return settings
