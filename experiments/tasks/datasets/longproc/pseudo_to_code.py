"""LongProc's translation of pseudo-code to C++: 1 where the program compiles and passes its tests.

The programs are written by a model and run on this machine, each with a limit of time, memory and files and without the
environment, but not shut off from disk and network: KVJAX_RUN_CODE=1 says that this is meant.
"""

import json
import os
import re
import resource
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from experiments.tasks.dataset_files import Record
from experiments.tasks.datasets.longproc.procedure import Procedure

VARIABLE = "KVJAX_RUN_CODE"
LIBRARIES = (
    "cstdio", "iostream", "vector", "algorithm", "numeric", "cmath", "cstring", "set", "map", "queue", "stack", "list", "fstream",
    "climits", "cassert", "iomanip", "sstream", "bitset",
)  # fmt: skip
HEADER = "".join(f"#include <{name}>\n" for name in LIBRARIES) + "using namespace std;\n"
#: Tests run at most, seconds of each, and bytes that a program may hold and write.
TESTS, SECONDS, MEMORY, WRITTEN = 10, 3, 1 << 30, 1 << 24


@dataclass(frozen=True)
class PseudoToCode(Procedure):
    """Source: longproc/spoc_evaluator.py and eval_pseudo_to_code (partial accuracy there is accuracy)."""

    KIND: ClassVar[str] = "pseudo_to_code"
    FILE: ClassVar[str] = "pseudo_to_code_{size}.json"
    SIZES: ClassVar[tuple[str, ...]] = ("0.5k", "2k")
    FIELDS: ClassVar[tuple[str, ...]] = ("pseudocode_lines", "code_lines", "testcases")

    def values(self, row: Record) -> Mapping[str, Any]:
        if os.environ.get(VARIABLE) != "1":
            raise ValueError(f"{self.NAME} runs programs that the model writes: set {VARIABLE}=1, best in a container")
        return {"pseudocode": "\n".join(row["pseudocode_lines"])}

    def references(self, row: Record) -> tuple[str, ...]:
        """The tests, as JSON."""
        return (json.dumps(row["testcases"]),)

    def figures(self, answer: str, references: Sequence[str]) -> Mapping[str, float]:
        code = program(answer)
        return {"score": float(code is not None and passes(HEADER + code, json.loads(references[0])))} | self.also(answer, ())

    def also(self, answer: str, references: Sequence[str]) -> Mapping[str, float]:
        """Whether there is a program; nothing is run for it."""
        return {"extraction_rate": float(program(answer) is not None)}


def program(answer: str) -> str | None:
    """What the first ```cpp (or ```c++) fence holds, up to the last fence."""
    found = re.search(r"```cpp([\s\S]*)```", answer.replace("```c++", "```cpp"))
    return found[1] if found else None


def passes(code: str, tests: Sequence[Sequence[Sequence[str]]]) -> bool:
    """Whether the program compiles (g++ -std=c++11 -O) and prints, for the first ten inputs, exactly the lines wanted.

    Raises:
        FileNotFoundError: there is no g++.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder, "program.cc"), Path(folder, "program")
        source.write_text(code, encoding="utf-8", errors="replace")
        try:
            built = subprocess.run(["g++", "-std=c++11", "-O", "-o", binary, source], capture_output=True, timeout=60)
        except subprocess.TimeoutExpired:
            return False
        return not built.returncode and all(_printed(binary, lines) == "\n".join(wanted) + "\n" for lines, wanted in tests[:TESTS])


def _printed(binary: Path, lines: Sequence[str]) -> str | None:
    """What the program prints for an input; None where it takes too long or prints no UTF-8."""
    given = ("\n".join(lines) + "\n").encode()
    how = dict(capture_output=True, timeout=SECONDS, env={}, cwd=binary.parent, preexec_fn=_limit)
    try:
        return subprocess.run([binary], input=given, **how).stdout.decode("utf-8")
    except (subprocess.TimeoutExpired, UnicodeDecodeError):
        return None


def _limit() -> None:
    for what, most in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_CPU, SECONDS + 1), (resource.RLIMIT_FSIZE, WRITTEN)):
        resource.setrlimit(what, (most, most))
