"""`kvjax train`: learn a method's gates from texts, the model frozen, or the model itself, and keep them as an artefact."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from experiments.calibrate.text import described
from experiments.commands.calibrate import parse_settings
from experiments.console import MODELS, JsonFile, Seed, err, out, write_json
from experiments.passages import sketch
from experiments.provenance import versions
from experiments.text_splits import Split, drawn, splits
from experiments.train import find, names
from experiments.train.data import find as find_data
from experiments.train.data import kinds
from experiments.train.data import reads_text as data_reads_text
from experiments.train.random_model import PREFIX, random_model

TrainedModel = Annotated[str, typer.Option("--model", help=f"{MODELS}; random:layers=4,width=64: one nobody has trained.")]
TrainText = Annotated[Path | None, typer.Option("--text", help="Text file to learn from; default: the standard library's.")]


def train(
    method: Annotated[str, typer.Argument(help=f"One of {', '.join(names())}.")],
    model: TrainedModel,
    folder: Annotated[Path, typer.Option("--out", help="Folder of the artefact; checkpoints are kept in FOLDER.run.")],
    data: Annotated[str | None, typer.Option("--data", help=f"One of {', '.join(kinds())}; default: the method's own.")] = None,
    text: TrainText = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of the whole run.")] = 200,
    budget: Annotated[int | None, typer.Option(min=1, help="Slots per KV head to train for; default: the method's own.")] = None,
    length: Annotated[int, typer.Option(min=8, help="Tokens of a text.")] = 512,
    samples: Annotated[int, typer.Option(min=1, help="Texts.")] = 200,
    rows: Annotated[int, typer.Option(min=1, help="Texts computed at once.")] = 1,
    parts: Annotated[int, typer.Option(min=1, help="Times `rows` texts a step: gradients are accumulated.")] = 1,
    every: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = 25,
    held_out: Annotated[int, typer.Option(min=0, help="Texts the losses are told of before and after.")] = 8,
    half: Annotated[bool, typer.Option("--half", help="Keep the weights in float16.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint.")] = False,
    changes: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE of the method's settings; may be repeated.")] = None,
    seed: Seed = 0,
    json_file: JsonFile = None,
) -> None:
    """Train what a method learns."""
    known = find(method)
    learner = known.learner(parse_settings(method, known.DEFAULTS, changes or ()), budget)
    kind = data or known.DATA
    make, reads_text = find_data(kind).examples, data_reads_text(kind)
    if text is not None and not reads_text:
        raise ValueError(f"--text {text}: data of kind {kind!r} read no text: leave it out, or name other --data")
    from kvjax.artefacts.artefact import refuse_strangers, save
    from kvjax.train import Examples, artefact_of
    from kvjax.train import train as run

    refuse_strangers(folder)
    texts = splits(text) if reads_text else drawn()
    lm = loaded(model, reads_text)
    learner.check(lm.decoder, length)
    with err.status("writing texts"):
        taught = make(lm, texts["train"].text, count=samples, length=length, seed=seed)
        other = make(lm, texts["held-out"].text, count=held_out, length=length, seed=seed) if held_out else []
    source = Examples(tuple(taught), rows=rows, parts=parts, seed=seed)
    with bar() as lines:
        how = dict(steps=steps, seed=seed, every=every, resume=resume, report=following(lines, steps))
        made = run(lm, learner, source, folder=beside(folder), **how)
    facts = {"steps": steps, "seed": seed, "length": length, "rows": rows, "accumulated": parts, "kvjax": versions()["kvjax"]}
    told = description(taught, texts["train"], kind)
    dtype = "float16" if half else "float32"
    passages = sketch(texts["train"].text) if reads_text else ""
    artefact = artefact_of(lm, learner, made.weights, data=told, run=facts, dtype=dtype, passages=passages)
    save(artefact, folder)
    out.print(f"{artefact.origin} in {folder}", markup=False)
    graded = before_and_after(lm, learner, made.weights, other, seed)
    for name, line in graded.items():
        out.print(f"held-out, {name}: {sentence(line)}", markup=False)
    write_json(json_file, {"out": str(folder), "origin": artefact.origin, **artefact.header, "held_out": graded})


def loaded(model: str, reads_text: bool) -> Any:
    """The model, with a tokenizer where text is read; `random:layers=4,width=64` is one that nobody has trained.

    Raises:
        ValueError: it has none.
    """
    import models

    with err.status(f"loading {model}"):
        lm = random_model(model) if model.startswith(PREFIX) else models.load(model, dtype="float32")
    if reads_text and lm.tokenizer is None:
        raise ValueError(f"{model} has no tokenizer, and training reads text: load a folder with tokenizer.json")
    return lm


def before_and_after(lm: Any, learner: Any, weights: Any, examples: Sequence[Any], seed: int) -> dict[str, dict[str, float]]:
    """The losses on held-out texts, before training and after."""
    from kvjax.train import Examples, mean_grade, untrained

    if not examples:
        return {}
    source, n = Examples(tuple(examples)), len(examples)
    both = {"before": untrained(lm, learner, seed), "after": weights}
    return {name: mean_grade(lm, learner, given, source, batches=n, seed=seed) for name, given in both.items()}


def beside(folder: Path) -> Path:
    """Where a run's checkpoints are."""
    return folder.with_name(f"{folder.name}.run")


def description(examples: Sequence[Any], taught: Split, kind: str) -> dict[str, Any]:
    """What an artefact's header says of its data."""
    said = described([example.ids for example in examples], taught.source)
    return {**said, "kind": kind, "split": taught.name, "text": taught.digest, "avoided": taught.avoided, "dropped": taught.dropped}


def bar() -> Progress:
    """A bar with the loss, the share that is kept, and the time left."""
    left = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), *left)
    return Progress(*columns, console=err, speed_estimate_period=3600)


def following(lines: Progress, steps: int) -> Callable[[dict[str, Any], int], None]:
    """A report that moves the bar; taken up, the bar begins where the run does."""
    task = lines.add_task("", total=steps)

    def report(line: dict[str, Any], steps: int) -> None:
        said = f"loss {line['loss']:.4f} kept {line['kept']:.1%}"
        lines.update(task, completed=line["step"] + 1, total=steps, description=said)

    return report


def sentence(line: dict[str, Any]) -> str:
    """Numbers by name."""
    return ", ".join(f"{name} {x:.5g}" for name, x in line.items())
