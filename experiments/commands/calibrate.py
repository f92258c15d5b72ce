"""`kvjax calibrate`: measure once what a method needs to know of a model, and keep it as an artefact."""

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.calibrate import find, names
from experiments.console import JsonFile, ModelName, Seed, err, out, progress, stages, write_json
from experiments.tasks.text import haystack
from experiments.text_splits import calibration_text


def calibrate(
    method: Annotated[str, typer.Argument(help=f"One of {', '.join(names())}.")],
    model: ModelName,
    folder: Annotated[Path, typer.Option("--out", help="Folder of the artefact; an artefact there is replaced.")],
    text: Annotated[
        Path | None, typer.Option(help="Text file, read whole; default: the documentation's calibration split.")
    ] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Prompts; default: the method's own.")] = None,
    length: Annotated[int | None, typer.Option(min=1, help="Tokens of the longest prompt; default: the method's own.")] = None,
    changes: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE of the method's settings; may be repeated.")] = None,
    seed: Seed = 0,
    json_file: JsonFile = None,
) -> None:
    """Calibrate a model for a method."""
    calibration = find(method)
    settings = parse_settings(method, calibration.DEFAULTS, changes or ())
    settings |= _options(changes or (), samples=samples, length=length)
    import models
    from kvjax.artefacts.artefact import refuse_strangers, save

    refuse_strangers(folder)
    source = calibration_text() if text is None else haystack(text)
    with err.status(f"loading {model}"):
        lm = models.load(model, dtype="float32")
    if lm.tokenizer is None:
        raise ValueError(f"{model} has no tokenizer, and calibration reads text: load a folder with tokenizer.json")
    with progress() as bar:
        artefact = calibration.calibrate(lm, source, settings, seed=seed, progress=stages(bar))
    save(artefact, folder)
    out.print(f"{artefact.origin} in {folder}", markup=False)
    write_json(json_file, {"out": str(folder), "origin": artefact.origin, **artefact.header})


def parse_settings(method: str, defaults: Mapping[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """The defaults with `["groups=16", "shared=True"]` changed, each value of the type of its default.

    Raises:
        ValueError: not KEY=VALUE, a setting that is not there or comes twice, a value of another type.
    """
    given: dict[str, Any] = {}
    for change in changes:
        key, equals, value = change.partition("=")
        if key in given:
            raise ValueError(f"--set: {key} is given twice")
        if not equals or key not in defaults:
            raise ValueError(f"--set {change!r} is not one KEY=VALUE of {method}'s settings; they are: {', '.join(defaults)}")
        given[key] = _of_type(key, value, type(defaults[key]))
    return {**defaults, **given}


def _options(changes: Sequence[str], *, samples: int | None, length: int | None) -> dict[str, int]:
    """The settings that have an option of their own and were given by it.

    Raises:
        ValueError: one that --set gives, too.
    """
    given = {name: x for name, x in dict(samples=samples, length=length).items() if x is not None}
    twice = sorted(given.keys() & {change.partition("=")[0] for change in changes})
    if twice:
        raise ValueError(f"--{twice[0]} and --set {twice[0]}=... were both given: say one of them")
    return given


def _of_type(key: str, text: str, kind: type) -> Any:
    try:
        value = ast.literal_eval(text.capitalize() if kind is bool else text)
    except (ValueError, SyntaxError):
        value = text
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise ValueError(f"--set {key}: expected {kind.__name__}, got {text!r}")
    return value
