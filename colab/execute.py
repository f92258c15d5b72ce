"""A notebook run from top to bottom by this Python, and what of its outputs is stored."""

import re
import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbformat import NotebookNode

ROOT = Path(__file__).parents[1]
#: The tag of a cell that measures: what it says is of the machine it ran on, and is not stored.
MEASURED = "measured-here"


class ThisPython(KernelSpecManager):
    """The kernel of the Python that runs this, whatever kernels are installed for the user."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=command, display_name=kernel_name, language="python")


def run(text: str) -> NotebookNode:
    """The notebook of `text` with its outputs, executed from the root of the repository."""
    made = nbformat.reads(text, as_version=4)
    manager = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=ThisPython(), transport="ipc")
    where = {"metadata": {"path": str(ROOT)}}
    return NotebookClient(made, km=manager, timeout=600, record_timing=False, resources=where).execute(cleanup_kc=True)


def stored(made: NotebookNode) -> NotebookNode:
    """The notebook with the outputs that are true on every machine: no warnings or progress, nothing of cells that measure."""
    made.metadata.pop("language_info", None)
    for cell in made.cells:
        if cell.cell_type == "code":
            measured = MEASURED in cell.metadata.get("tags", [])
            cell.outputs = [] if measured else list(_joined(output for output in cell.outputs if output.get("name") != "stderr"))
    return made


def _joined(outputs: Iterable[NotebookNode]) -> Iterable[NotebookNode]:
    """Text printed in several pieces as one: where it is cut depends on the time."""
    for printed, group in groupby(outputs, key=lambda output: output.output_type == "stream"):
        found = list(group)
        if printed:
            found[0].text, found = "".join(output.text for output in found), found[:1]
        yield from found


def said(made: NotebookNode) -> Iterable[str]:
    """The text of all outputs."""
    for cell in made.cells:
        for output in cell.get("outputs", []):
            yield output.get("text", "") + "".join(output.get("data", {}).get("text/plain", ""))


def local(text: str) -> list[str]:
    """What of a text is of one machine: paths and times."""
    return re.findall(r"(?<![\w:/.])/(?:[\w.-]+/)+[\w.-]*|[A-Z]:\\\S+|\d[\d.]*\s*(?:ms|µs|us|s|seconds|minutes|tokens/s)\b", text)
