"""Every notebook of colab/ is the pair of its text file, runs from top to bottom, and shows something within five cells."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("nbclient", reason="the extra `notebooks` is not installed")
pytest.importorskip("jupytext", reason="the extra `notebooks` is not installed")

import nbformat
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

from colab.build import FOLDER, main, notebook, sources

ROOT = FOLDER.parent
NAMES = ["ablation_in_ten_lines", "calibrating", "memory_and_speed", "quickstart", "what_was_kept", "write_your_own_stage"]
pytestmark = pytest.mark.filterwarnings("ignore")  # of the kernel's own machinery; cells run in another process


class ThisPython(KernelSpecManager):
    """The kernel of the Python that runs the tests, whatever kernels are installed for the user."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=command, display_name=kernel_name, language="python")


def run(path: Path):
    """The notebook with its outputs, executed from the root of the repository."""
    made = nbformat.read(path, as_version=4)
    manager = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=ThisPython(), transport="ipc")
    client = NotebookClient(made, km=manager, timeout=240, resources={"metadata": {"path": str(ROOT)}})
    return client.execute()


def visible(cell) -> bool:
    """Whether a cell shows text or a picture; warnings and progress on stderr do not count."""
    outputs = cell.get("outputs", [])
    return any(x.output_type in ("display_data", "execute_result") or x.get("name") == "stdout" for x in outputs)


def test_the_folder_holds_these_notebooks():
    assert [path.stem for path in sources()] == NAMES
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == NAMES


def test_every_notebook_is_that_of_its_text_file():
    assert main(["--check"]) == 0


def test_all_begin_with_the_same_installation():
    first = {nbformat.reads(notebook(path), as_version=4).cells[1].source for path in sources()}
    assert len(first) == 1 and "pip" in first.pop()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_it_runs_and_shows_something_within_five_cells(name):
    cells = run(FOLDER / f"{name}.ipynb").cells
    assert any(visible(cell) for cell in cells[:5])
    assert any("image/png" in x.get("data", {}) for cell in cells for x in cell.get("outputs", []))
