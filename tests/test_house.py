"""The house itself: no folder knot, no long file, no long function, no protocol by name."""

import ast
import statistics
from collections import defaultdict
from pathlib import Path

from tests import long_tests

ROOT = Path(__file__).parents[1] / "kvjax"
FILES = sorted(ROOT.rglob("*.py"))
OUTSIDE_KERNELS = [path for path in FILES if "kernels" not in path.parts]


def imported(path: Path) -> set[str]:
    """Modules of kvjax that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found |= {f"kvjax.{name.name}" for name in node.names} if node.module == "kvjax" else {node.module}
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return {module for module in found if module.startswith("kvjax.")}


def rooms() -> dict[str, set[str]]:
    """Which folders (and files at the root) import which."""
    graph = defaultdict(set)
    for path in FILES:
        mine = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if mine != "__init__":
            graph[mine] |= {module.split(".")[1] for module in imported(path)} - {mine}
    return graph


def test_no_folder_imports_one_that_imports_it():
    graph, done = rooms(), set()

    def visit(room, path):
        assert room not in path, " -> ".join([*path[path.index(room) :], room])
        if room not in done:
            for other in sorted(graph[room]):
                visit(other, [*path, room])
            done.add(room)

    for room in sorted(graph):
        visit(room, [])


def test_kvjax_imports_nothing_of_what_is_built_on_it():
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                assert node.module.split(".")[0] not in ("models", "experiments", "tests", "colab"), path


def test_files_are_short():
    lengths = {path: len(path.read_text().splitlines()) for path in OUTSIDE_KERNELS}
    assert {path: n for path, n in lengths.items() if n > 250} == {}
    assert statistics.median(lengths.values()) <= 60


def test_functions_are_short():
    long = []
    for path in OUTSIDE_KERNELS:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno + 1 > 40:
                long.append((path.name, node.name, node.end_lineno - node.lineno + 1))
    assert long == []


def test_no_protocol_by_name_and_no_class_made_of_words():
    for path in OUTSIDE_KERNELS:
        names = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
        assert not names & {"hasattr", "SimpleNamespace"}, path


def test_signatures_name_their_types():
    bare = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            hints = [node.annotation] if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation else []
            hints += [node.returns] if isinstance(node, ast.FunctionDef) and node.returns else []
            bare += [(path.name, node.lineno) for hint in hints if isinstance(hint, ast.Name) and hint.id == "Any"]
    assert bare == []


def test_long_tests_are_there():
    names = long_tests.names()
    assert [name for name in names if not long_tests.there(name)] == []
    said = "12.30s call     tests/a/test_b.py::test_c[d e]\n9.1s setup    tests/a/test_b.py::test_f\n= slowest ="
    assert long_tests.took(said) == {"tests/a/test_b.py::test_c[d e]": 12.3}
