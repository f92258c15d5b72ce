"""`python -m colab.build`: write every NAME.ipynb of this folder from NAME.py; `--run [NAME ...]` runs it and stores its outputs.

The text files are the source (jupytext's percent format). But for its outputs a notebook is the same bytes wherever it is built;
`--check` compares these and exits with 1 where one is out of date. A notebook that is written anew has no outputs until it is run.
"""

import sys
from pathlib import Path

import jupytext
import nbformat

FOLDER = Path(__file__).parent


def sources() -> list[Path]:
    """The text files that are notebooks."""
    return sorted(path for path in FOLDER.glob("*.py") if path.name not in ("__init__.py", "build.py", "execute.py"))


def notebook(source: Path) -> str:
    """The notebook of a text file, without outputs."""
    made = jupytext.read(source)
    for number, cell in enumerate(made.cells):
        cell.id = f"{source.stem}-{number}"  # jupytext draws them at random
    made.metadata["jupytext"].pop("text_representation", None)  # it holds jupytext's version
    return nbformat.writes(made, version=4) + "\n"


def without_outputs(text: str) -> str:
    """A notebook as it was before it ran."""
    made = nbformat.reads(text, as_version=4)
    for cell in made.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return nbformat.writes(made, version=4) + "\n"


def main(arguments: list[str]) -> int:
    """Write, run or, with --check, compare; the exit code."""
    if "--run" in arguments:
        return _run([word for word in arguments if word != "--run"])
    stale = []
    for source in sources():
        target, text = source.with_suffix(".ipynb"), notebook(source)
        if not target.is_file() or without_outputs(target.read_text(encoding="utf-8")) != text:
            stale.append(target.name)
            if "--check" not in arguments:
                target.write_text(text, encoding="utf-8")
    verb = "out of date" if "--check" in arguments else "written"
    print(f"{len(sources())} notebooks, {verb}: {', '.join(stale) or 'none'}")
    return int(bool(stale) and "--check" in arguments)


def _run(names: list[str]) -> int:
    """Run the notebooks named, else all, one after the other."""
    from colab.execute import run, stored  # needs nbclient

    known = {source.stem: source for source in sources()}
    if unknown := sorted(set(names) - set(known)):
        print(f"no notebook is called {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    for name in names or known:
        made = stored(run(notebook(known[name])))
        known[name].with_suffix(".ipynb").write_text(nbformat.writes(made, version=4) + "\n", encoding="utf-8")
        print(f"ran {name}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
