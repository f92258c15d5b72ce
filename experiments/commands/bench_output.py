"""What the benchmarks' commands share: model and text, a progress bar under the machine's lock, figures line by line."""

from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.console import err, out, progress, write_json
from experiments.full_cache import MB
from experiments.tasks.chat import encode_plain
from experiments.tasks.text import haystack

#: Fields of a result that are shown as they are.
_WHOLE = (
    "device", "copy_gb_per_s", "allocated_bytes", "kvjax_seconds_by_prompt", "kvpress_seconds_by_cell", "hours_of_the_grid",
    "kept_share", "slots_per_head", "weights_bytes", "fit", "compile_seconds", "cache_entries", "temporary_bytes",
)  # fmt: skip

Rounds = Annotated[int, typer.Option("--rounds", min=1, help="Counted rounds; medians are reported.")]


def model_and_text(model: str, dtype: str, context: int | None, text: Path | None) -> tuple[Any, list[int]]:
    """The model and the first `context` tokens of the haystack (all of them for None)."""
    import models

    with err.status(f"loading {model}"):
        lm = models.load(model, dtype=dtype)
        ids = encode_plain(lm, haystack(text).text)
    if context is not None and context > min(len(ids), lm.decoder.max_positions):
        limit = min(len(ids), lm.decoder.max_positions)
        raise ValueError(f"--context {context} is beyond the {limit} tokens that the text and the model have")
    return lm, ids[:context]


@contextmanager
def measuring(name: str, steps: int | None):
    from experiments.bench import alone

    with alone(), progress() as bar:
        line = bar.add_task(name, total=steps)

        def done(count: int) -> None:
            bar.advance(line, count)

        yield done


def show(result: dict[str, Any], json_file: Path | None) -> None:
    """Conditions, then every figure on a line of its own."""
    out.print(f"{result['bench']}: {result['shape']}; {result['dtype']}", markup=False)
    out.print(f"on {result['machine']}; commit {result['commit'] or 'none'}; {result['versions']}", markup=False)
    for field in ("seconds", "ms_per_token"):
        for name, value in result.get(field, {}).items():
            unit, scale = ("ms", 1e3) if field == "seconds" and value["median"] < 1 else ("s", 1.0)
            unit, scale = ("ms/token", 1.0) if field == "ms_per_token" else (unit, scale)
            words = f"{scale * value['median']:.2f} {unit} (min {scale * value['min']:.2f}, n={value['count']})"
            out.print(f"  {name}: {words}", markup=False)
    for field in _WHOLE:
        if field in result:
            out.print(f"  {field}: {result[field]}", markup=False)
    for name, value in result.get("cells", {}).items():
        out.print(f"  {name}: {value}", markup=False)
    for name, value in result.get("full", {}).items():
        out.print(f"  full cache, {name}: {value}", markup=False)
    for name, value in result.get("memory", {}).items():
        out.print(f"  {name}: {value / MB:.2f} MB", markup=False)
    for found in filter(None, result.get("divergences", [])):
        out.print(f"  parted: {found}", markup=False)
    for field, words in (("ratios", "ratio"), ("bytes_ratios", "ratio of bytes")):
        for name, value in result.get(field, {}).items():
            out.print(f"  {words} {name}: {value:.2f}", markup=False)
    for field in ("peers", "rivals"):
        if field in result:
            out.print(f"  {field}: {result[field]}", markup=False)
    write_json(json_file, result)
