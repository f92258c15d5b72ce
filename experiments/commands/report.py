"""`kvjax report`: tables, pictures and one page from result files."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from experiments.console import JsonFile, err, out, write_json
from experiments.files import write_atomically
from experiments.report import markdown, tables
from experiments.report.comparison import check_baseline
from experiments.report.inputs import gather


def report(
    files: Annotated[list[Path], typer.Argument(help="JSONL files of `kvjax sweep`, JSON files of `kvjax bench`.")],
    folder: Annotated[Path, typer.Option("--out", help="Folder for index.html, table.md and the pictures.")],
    baseline: Annotated[str | None, typer.Option(help="Policy the others are compared with, by prompt [full].")] = None,
    charts: Annotated[bool, typer.Option("--charts", help="Also charts that follow the page's filter; extra `pages`.")] = False,
    json_file: JsonFile = None,
) -> None:
    """Print a table of scores against allocated bytes; write it as markdown, PNGs, and a page that needs no network."""
    inputs = gather(files)
    if baseline is not None:
        check_baseline(inputs.all_rows, baseline)
    found = tables(inputs.all_rows) if inputs.all_rows else []
    folder.mkdir(parents=True, exist_ok=True)
    text = "\n".join(markdown(table) for table in found)
    if text:
        out.print(text, markup=False)
        write_atomically(folder / "table.md", text.encode())
    with err.status("drawing"):
        from experiments.report.charts import interactive, none
        from experiments.report.write import write

        written = write(inputs, found, baseline or "full", folder, interactive if charts else none)
    out.print(f"wrote {written.page} and {len(written.pictures)} pictures beside it", markup=False)
    payload = {
        "tables": [asdict(table) for table in found],
        "comparisons": [asdict(comparison) for comparison in written.comparisons],
        "figures": [str(picture) for picture in written.pictures],
        "page": str(written.page),
    }
    write_json(json_file, _clean(payload))


def _clean(value):
    """For machines; an interval that is not known is null."""
    if isinstance(value, dict):
        return {k: _clean(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(v) for v in value]
    return None if isinstance(value, float) and value != value else value
