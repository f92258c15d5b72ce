"""`kvjax calibrate`: measure once what a method needs to know of a model, and keep it as an artefact."""

import ast
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.calibrate import METHODS, find
from experiments.calibrate.work import Resumable
from experiments.console import JsonFile, ModelName, TextFile, err, out, progress, write_json
from experiments.tasks.text import haystack

#: Settings that have options of their own, and what is no setting.
_OPTIONS = ("samples", "length", "seed")
_OTHERS = ("lm", "text", "work")


def calibrate(
    method: Annotated[str, typer.Argument(help=f"One of {', '.join(METHODS)}.")],
    model: ModelName,
    folder: Annotated[Path, typer.Option("--out", help="Folder of the artefact; an artefact there is replaced.")],
    text: TextFile = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Prompts; default: the method's own.")] = None,
    length: Annotated[int | None, typer.Option(min=1, help="Tokens of the longest prompt; default: the method's own.")] = None,
    changes: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE of the method's settings; may be repeated.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the prompts and of the fit.")] = 0,
    json_file: JsonFile = None,
) -> None:
    """Calibrate a model for a method; a killed run goes on where it was."""
    make = find(method)
    settings = parse_settings(method, make, changes or ())
    settings |= {name: x for name, x in dict(samples=samples, length=length).items() if x is not None}
    import models
    from kvjax.calibrate.artefact import refuse_strangers, save

    refuse_strangers(folder)
    source = haystack(text)
    with err.status(f"loading {model}"):
        lm = models.load(model, dtype="float32")
    if lm.tokenizer is None:
        raise ValueError(f"{model} has no tokenizer, and calibration reads text: load a folder with tokenizer.json")
    with progress() as bar:
        work = Resumable(folder.absolute().with_name(f".{folder.absolute().name}.parts"), bar)
        artefact = make(lm, source, seed=seed, work=work, **settings)
    save(artefact, folder)
    work.finish()
    out.print(f"{artefact.origin} in {folder}", markup=False)
    write_json(json_file, {"out": str(folder), "origin": artefact.origin, **artefact.header})


def parse_settings(method: str, make: Callable, changes: Sequence[str]) -> dict[str, Any]:
    """`["groups=16", "shared=True"]` → keyword arguments of a `calibrate`, each of the type of its default.

    Raises:
        ValueError: not KEY=VALUE, a setting that is not there or comes twice, a value of another type.
    """
    known = {n: p.default for n, p in inspect.signature(make).parameters.items() if n not in (*_OPTIONS, *_OTHERS)}
    given: dict[str, Any] = {}
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals or key not in known or key in given:
            raise ValueError(f"--set {change!r} is not one KEY=VALUE of {method}'s settings; they are: {', '.join(known)}")
        given[key] = _of_type(key, value, type(known[key]))
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
