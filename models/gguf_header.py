"""The counts of a .gguf header held against the file's size, before a reader believes them; and where its tensors lie.

    "GGUF" version n_tensors n_pairs, then pairs: name kind value, then tensors; a text is its length and its bytes, an array
    the kind of its values, their number and the values. Numbers have the machine's usual order, or the other one.

Source: the GGUF specification, version 3.
"""

import mmap
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: Bytes of a value by its kind; text (8) and arrays (9) say theirs.
_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_TEXT, _ARRAY = 8, 9
#: Arrays within arrays: none are known.
_DEPTH = 4


class Walk:
    """A place in the mapped file that moves on over values and never past the end.

    Raises:
        ValueError: a value that the file is too short for, or of a kind that there is not.
    """

    def __init__(self, data: mmap.mmap) -> None:
        self._data, self._at = data, 4
        self._order = "<" if data[4:6] != b"\0\0" else ">"
        if data[:4] != b"GGUF":
            raise ValueError("it does not begin with GGUF")

    def number(self, form: str) -> int:
        """Return the next integer: "I" of four bytes, "Q" of eight."""
        begin = self._at
        self.skip(struct.calcsize(f"<{form}"))
        return struct.unpack(self._order + form, self._data[begin : self._at])[0]

    def skip(self, count: int) -> None:
        """Move on by `count` bytes."""
        if count > len(self._data) - self._at:
            raise ValueError(f"at byte {self._at} it claims {count} more bytes, and has {len(self._data) - self._at}")
        self._at += count

    def value(self, kind: int, depth: int = 0) -> None:
        """Move on over a value of a kind."""
        if kind == _TEXT:
            self.skip(self.number("Q"))
        elif kind == _ARRAY and depth < _DEPTH:
            self._array(self.number("I"), self.number("Q"), depth + 1)
        elif kind in _BYTES:
            self.skip(_BYTES[kind])
        else:
            raise ValueError(f"at byte {self._at} is a value of the unknown kind {kind}")

    def _array(self, kind: int, count: int, depth: int) -> None:
        if kind in _BYTES:
            self.skip(_BYTES[kind] * count)
            return
        for _ in range(count):  # each takes eight bytes at least: the file's end ends this
            self.value(kind, depth)


def check_counts(path: Path) -> None:
    """See that the file is long enough for all metadata that its header claims.

    Raises:
        ValueError: it is not, or the header is none.
    """
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        walk = Walk(data)
        walk.number("I")
        tensors, pairs = walk.number("Q"), walk.number("Q")
        for _ in range(pairs):
            walk.value(_TEXT)
            walk.value(walk.number("I"))
        for _ in range(tensors):
            walk.value(_TEXT)
            walk.skip(8 * walk.number("I") + 4 + 8)


def check_places(tensors: Sequence[Any], alignment: int) -> None:
    """See that every tensor begins where the one before it ends, rounded up to `alignment`, as llama.cpp demands.

    Raises:
        ValueError: one does not.
    """
    places = sorted((int(tensor.data_offset), int(tensor.n_bytes), tensor.name) for tensor in tensors)
    for (begin, size, _), (follows, _, name) in zip(places, places[1:], strict=False):
        if follows != begin - (-size // alignment) * alignment:
            raise ValueError(f"tensor {name!r} begins at byte {follows}, and the one before it ends at {begin + size}")
