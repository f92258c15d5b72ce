"""Every notebook of colab/ is the pair of its text file, runs from top to bottom, and shows something within five cells."""

import os
import subprocess
import sysconfig
import venv
from pathlib import Path
from shutil import copy, copytree, ignore_patterns, rmtree

import pytest

pytest.importorskip("nbclient", reason="the extra `notebooks` is not installed")
pytest.importorskip("jupytext", reason="the extra `notebooks` is not installed")

import nbformat

from colab.build import FOLDER, main, notebook, sources, without_outputs
from colab.execute import MEASURED, local, run, said, stored

ROOT = FOLDER.parent
NAMES = [
    "ablation_in_ten_lines", "calibrating", "memory_and_speed", "quickstart", "train_a_gate", "what_was_kept",
    "write_your_own_stage",
]  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore")  # of the kernel's own machinery; cells run in another process


def visible(cell) -> bool:
    """Whether a cell shows text or a picture; warnings and progress on stderr do not count."""
    outputs = cell.get("outputs", [])
    return any(x.output_type in ("display_data", "execute_result") or x.get("name") == "stdout" for x in outputs)


def test_the_folder_holds_these_notebooks():
    assert [path.stem for path in sources()] == NAMES
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == NAMES


def test_every_notebook_is_that_of_its_text_file():
    assert main(["--check"]) == 0


@pytest.mark.parametrize("name", NAMES)
def test_its_outputs_are_stored_and_true_on_every_machine(name):
    """It ran from top to bottom and shows text or pictures, none of them a path, a time or a warning."""
    text = (FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")
    made = nbformat.reads(text, as_version=4)
    code = [cell for cell in made.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert any("image/png" in output.get("data", {}) for cell in code for output in cell.outputs)
    assert not [x for cell in code for x in cell.outputs if x.output_type == "error" or x.get("name") == "stderr"]
    assert not [cell for cell in code if MEASURED in cell.metadata.get("tags", []) and cell.outputs]
    assert [found for words in said(made) for found in local(words)] == []
    assert without_outputs(text) == notebook(FOLDER / f"{name}.py") and len(text) < 700_000


def test_what_is_of_one_machine_is_seen():
    assert local("wrote /root/x/page.html in 3.2 ms") == ["/root/x/page.html", "3.2 ms"]
    assert local("12 tokens/step, 3 layers x 2, a/b/c, 512 slots, 4.5 MB") == []


def test_a_cell_that_measures_and_warnings_are_not_stored():
    text = notebook(FOLDER / "quickstart.py")
    made = nbformat.reads(text, as_version=4)
    made.cells = made.cells[:2]
    made.cells[1].source = "import sys\nprint('kept'); print('a warning', file=sys.stderr)"
    ran = stored(run(nbformat.writes(made)))
    assert [output.text for output in ran.cells[1].outputs] == ["kept\n"]
    ran.cells[1].metadata["tags"] = [MEASURED]
    assert stored(ran).cells[1].outputs == []


def installation(path: Path) -> str:
    """The cell that installs kvjax."""
    return nbformat.reads(notebook(path), as_version=4).cells[1].source


def test_all_begin_with_the_same_installation():
    first = {installation(path) for path in sources()}
    assert len(first) == 1 and "pip" in first.pop()


def bare_python(folder: Path) -> Path:
    """A Python that has all packages of this one but kvjax."""
    venv.create(folder, symlinks=True)
    packages = folder / "packages"
    packages.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith(("kvjax", "__editable__")):
            (packages / path.name).symlink_to(path)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "packages.pth").write_text(f"{packages}\n")
    return folder / "bin" / "python"


def test_the_installation_works_from_the_folder_that_holds_the_clone(tmp_path):
    """As on Colab: the clone at content/kvjax, the working folder content; a second run asks nothing of pip."""
    pytest.importorskip("setuptools", reason="pip builds with setuptools, which is not installed here")
    content = tmp_path / "content"
    for name in ("kvjax", "models", "experiments"):
        copytree(ROOT / name, content / "kvjax" / name, ignore=ignore_patterns("__pycache__", "results"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "constraints.txt"):
        copy(ROOT / name, content / "kvjax" / name)
    python = bare_python(tmp_path / "python")
    # "0" is how pip is told not to isolate the build
    alone = {"PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1", "PIP_CONSTRAINT": "", "JAX_PLATFORMS": "cpu"}
    code = installation(FOLDER / "quickstart.py") + "\nimport kvjax\nprint(kvjax.__file__, kvjax.methods.names()[0])"

    def run_cell() -> str:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | alone
        done = subprocess.run([python, "-c", code], cwd=content, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    first = run_cell()
    assert first.startswith(str(tmp_path / "python" / "lib")) and first.endswith("ada_expected\n")
    rmtree(content / "kvjax" / "kvjax")
    assert run_cell() == first


def test_the_installation_says_what_it_lacks(tmp_path):
    python = bare_python(tmp_path / "python")
    code = installation(FOLDER / "quickstart.py")
    done = subprocess.run([python, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert f"{tmp_path}/kvjax is no clone of kvjax: clone the repository there, or change SOURCE" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_it_runs_and_shows_something_within_five_cells(name):
    cells = run(notebook(FOLDER / f"{name}.py")).cells
    assert any(visible(cell) for cell in cells[:5])
    assert any("image/png" in x.get("data", {}) for cell in cells for x in cell.get("outputs", []))
