"""Damage to files and words, drawn from a seed: bytes that flip, ends that are lost, values that nobody expects."""

import copy
import json
import os
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

#: What may stand where something else is expected.
STRANGE = [
    None, True, False, 0, -1, 1.5, 10**18, 3 * 10**8, 10**400, float("inf"), float("nan"), 1e300, "", "x", "false", "a|b\nc",
    "\ud800", "\x1b[31m", "../../x", "$\\frac{", "x" * 3000, [], {}, [1], {"a": 1}, [[]],
]  # fmt: skip
#: What the errors are that a user can mend.
NAMED = (ValueError, OSError)


@contextmanager
def bounded_memory() -> Iterator[None]:
    """One bad input takes less than 200 MB beyond what the process held before it: by Linux's own peak, begun anew."""
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("this system does not begin a process's peak of memory anew")
    Path("/proc/self/clear_refs").write_text("5")
    before = _memory("VmRSS")
    try:
        yield
    finally:  # an input that is refused is held to it, too
        assert _memory("VmHWM") - before < 200e6


def _memory(name: str) -> int:
    """Bytes of this process by a name of its status."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return 1024 * int(found[1])


def of_bytes(data: bytes, draw: random.Random, end: int) -> bytes:
    """`data` with one damage before byte `end`: a bit, a word of ones, zeros or a large number, or all that follows lost."""
    at, made = draw.randrange(end), bytearray(data)
    kind = draw.choice(["flip", "flip", "ones", "zeros", "large", "cut"])
    if kind == "cut":
        return data[:at]
    if kind == "flip":
        made[at] ^= 1 << draw.randrange(8)
    else:
        large = draw.choice([10**9, 2**31, 2**40, 2**62]).to_bytes(8, "little")
        made[at : at + 8] = {"ones": b"\xff" * 8, "zeros": b"\0" * 8, "large": large}[kind]
    return bytes(made[: len(data)])


def of_json(value: Any, draw: random.Random) -> Any:
    """A copy of `value` in which one part is lost or strange."""
    path = draw.choice(list(_paths(value)))
    if not path:
        return draw.choice(STRANGE)
    made = inner = copy.deepcopy(value)
    for step in path[:-1]:
        inner = inner[step]
    if draw.random() < 0.25:
        del inner[path[-1]]
    else:
        inner[path[-1]] = draw.choice(STRANGE)
    return made


def of_text(value: Any, draw: random.Random) -> bytes:
    """`value` as JSON: a damaged value, or damaged bytes."""
    if draw.random() < 0.7:
        return json.dumps(of_json(value, draw)).encode()
    text = json.dumps(value).encode()
    return of_bytes(text, draw, len(text))


def said(error: BaseException) -> str:
    """What a named error says, once it is seen to be one line that can be read."""
    text = str(error)
    assert text and "\n" not in text and len(text) < 5000, text
    return text


def _paths(value: Any, above: tuple = ()) -> Iterator[tuple]:
    """Where the parts of a JSON value are; of a list the first five."""
    yield above
    steps = list(value) if isinstance(value, dict) else range(min(len(value), 5)) if isinstance(value, list) else ()
    for step in steps:
        yield from _paths(value[step], (*above, step))
