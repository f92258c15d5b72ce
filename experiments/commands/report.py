"""`kvjax report`: tables and figures from result files."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from experiments.console import JsonFile, err, out, write_json
from experiments.files import write_atomically
from experiments.report import Table, markdown, tables
from experiments.rows import read


def report(
    files: Annotated[list[Path], typer.Argument(help="JSONL files that `kvjax sweep` wrote.")],
    folder: Annotated[Path, typer.Option("--out", help="Folder for table.md and the figures.")],
    json_file: JsonFile = None,
) -> None:
    """Print a markdown table of accuracy and perplexity against allocated bytes; write it and a PNG for each length."""
    found = tables([row for file in files for row in read(file)])
    folder.mkdir(parents=True, exist_ok=True)
    text = "\n".join(markdown(table) for table in found)
    out.print(text, markup=False)
    write_atomically(folder / "table.md", text.encode())
    figures = []
    with err.status("drawing"):
        from experiments.figure import draw

        figures = [str(draw(table, folder / _file_name(table))) for table in found]
    out.print(f"wrote {folder / 'table.md'} and {', '.join(figures)}", markup=False)
    write_json(json_file, {"tables": [_plain(table) for table in found], "figures": figures})


def _file_name(table: Table) -> str:
    model = "".join(c if c.isalnum() or c in "-." else "-" for c in Path(table.model).name)
    return f"{model}-{table.dtype}-{table.length}.png"


def _plain(table: Table) -> dict:
    """The table for machines; an interval that is not known is null."""

    def clean(value):
        if isinstance(value, dict):
            return {k: clean(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [clean(v) for v in value]
        return None if isinstance(value, float) and value != value else value

    return clean(asdict(table))
