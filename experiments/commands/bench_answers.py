"""`kvjax bench parity | peer-scores`: what the model answers, beside what the peers answered on the same token ids."""

from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.commands.bench_output import model_and_text, show
from experiments.console import JsonFile, ModelName, TextFile, progress
from experiments.tasks.text import haystack

ROWS = Path("experiments/results/peer_scores.jsonl")


def parity(
    model: ModelName = "smollm2-135m",
    new: Annotated[int, typer.Option(min=1, help="Greedy tokens compared on each prompt.")] = 64,
    json_file: JsonFile = None,
) -> None:
    """The same greedy tokens as transformers on five prompts; near-ties are listed."""
    import models
    from experiments.bench.parity import parity as bench

    result = bench(models.load(model), new)
    show(result, json_file)
    _fail(any(found and not found["tie"] for found in result["divergences"]))


def peer_scores(
    model: ModelName = "smollm2-135m",
    prompts: Annotated[int, typer.Option(min=1, help="Prompts of each set, at most; the record has up to 50.")] = 50,
    sets: Annotated[str | None, typer.Option(help="Comma-separated TASK/LENGTH/MODE of the record; default: all.")] = None,
    rows: Annotated[Path, typer.Option(help="JSONL of our answers; an unfinished one is resumed.")] = ROWS,
    record: Annotated[Path | None, typer.Option(help="Folder with quality_peers.py and raw/: record the peers anew.")] = None,
    text: TextFile = None,
    json_file: JsonFile = None,
) -> None:
    """Scores of five methods beside kvpress's on the same prompts and ratios; the full cache token by token."""
    from experiments.bench.score_table import table
    from experiments.row_checks import cell
    from experiments.rows import read

    lm, ids = model_and_text(model, "float32", None, text)
    if record is not None:
        _record(lm, record, text)
    chosen = _chosen(sets)
    _measure(lm, chosen, ids, rows, prompts=prompts, text=text)
    result = table(chosen, read(rows, cell))
    show(result, json_file)
    outside = any(not cell["inside"] for cell in result["cells"].values())
    _fail(outside or any(not found["tie"] for found in result["divergences"]))


def _record(lm: Any, folder: Path, text: Path | None) -> None:
    from experiments.bench.record_scores import record
    from experiments.bench.scores import METHODS

    record(lm, folder, haystack(text), tuple(METHODS))


def _chosen(names: str | None) -> list[dict[str, Any]]:
    from experiments.bench.peer_scores import load

    known = {f"{found['task']}/{found['length']}/{found['mode']}": found for found in load()}
    wanted = list(known) if names is None else [name.strip() for name in names.split(",")]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise ValueError(f"--sets: {', '.join(unknown)} not in the record; it has {', '.join(known)}")
    return [known[name] for name in wanted]


def _measure(lm: Any, sets: list[dict], ids: list[int], rows: Path, *, prompts: int, text: Path | None) -> None:
    from experiments import sweep
    from experiments.bench.scores import scores as bench
    from experiments.row_checks import cell
    from experiments.rows import RowFile

    common = sweep.identity(lm, haystack(text))
    total = sum(min(prompts, len(found["prompts"])) for found in sets)
    with RowFile(rows, common, cell) as file, progress() as bar:
        line = bar.add_task("prompts", total=total)
        bench(lm, sets, ids, file, common=common, prompts=prompts, done=lambda count: bar.advance(line, count))


def _fail(wrong: bool) -> None:
    if wrong:
        raise typer.Exit(1)
