"""`python -m colab.build`: write every NAME.ipynb of this folder from NAME.py, without outputs.

The text files are the source (jupytext's percent format). A notebook is the same bytes wherever it is built, so `--check`, which
only compares, exits with 1 where one is out of date.
"""

import sys
from pathlib import Path

import jupytext
import nbformat

FOLDER = Path(__file__).parent


def sources() -> list[Path]:
    """The text files that are notebooks."""
    return sorted(path for path in FOLDER.glob("*.py") if path.name not in ("__init__.py", "build.py"))


def notebook(source: Path) -> str:
    """The notebook of a text file, as it is written to disk."""
    made = jupytext.read(source)
    for number, cell in enumerate(made.cells):
        cell.id = f"{source.stem}-{number}"  # jupytext draws them at random
    made.metadata["jupytext"].pop("text_representation", None)  # it holds jupytext's version
    return nbformat.writes(made, version=4) + "\n"


def main(arguments: list[str]) -> int:
    """Write or, with --check, compare; the exit code."""
    stale = []
    for source in sources():
        target, text = source.with_suffix(".ipynb"), notebook(source)
        if not target.is_file() or target.read_text(encoding="utf-8") != text:
            stale.append(target.name)
            if "--check" not in arguments:
                target.write_text(text, encoding="utf-8")
    verb = "out of date" if "--check" in arguments else "written"
    print(f"{len(sources())} notebooks, {verb}: {', '.join(stale) or 'none'}")
    return int(bool(stale) and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
