"""`kvjax results`: the pages of docs/results, made anew from the committed rows."""

from pathlib import Path
from typing import Annotated

import typer

from experiments.console import JsonFile, out, write_json
from experiments.result_pages.pages import FOLDER, PAGES, write


def results(
    names: Annotated[list[str] | None, typer.Argument(help=f"Pages: {', '.join(PAGES)} [all].")] = None,
    folder: Annotated[Path, typer.Option("--out", help="Folder of the pages.")] = FOLDER,
    json_file: JsonFile = None,
) -> None:
    """Write pages of results; nothing is measured."""
    written = [write(name, folder) for name in names or PAGES]
    out.print(f"wrote {', '.join(path.name for path in written)} in {folder}", markup=False)
    write_json(json_file, {"pages": [str(path) for path in written]})
