"""Named arrays and a JSON header in one safetensors file, each array with a checksum; nothing in a file is ever executed."""

import hashlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from safetensors import SafetensorError, safe_open
from safetensors.flax import save_file

from kvjax.files.deflate import deflated, inflated

_KEY, _SUM = "kvjax", "kvjax_checksum"


@dataclass(frozen=True)
class Kind:
    """What a file holds, in words, and the call that writes one: for messages."""

    holds: str
    made_by: str


def write(
    tensors: dict[str, jax.Array], path: Path, header: dict[str, object], *, kind: Kind, deflate: bool = False
) -> None:
    """Write beside the name, flush to the disk, rename: a file that is there is replaced whole, or not at all.

    A link is followed: what it names is replaced. With `deflate` arrays are compressed (`kvjax.files.deflate`), and the header says
    of which shape and dtype each was.

    Raises:
        OSError: the file cannot be written, or something else than a file has its name.
    """
    if deflate:
        header = header | {"deflated": {name: [list(x.shape), str(x.dtype)] for name, x in tensors.items()}}
        tensors = {name: jnp.asarray(deflated(x)) for name, x in tensors.items()}
    sums = {"holds": kind.holds, "checksums": {name: checksum(x) for name, x in tensors.items()}}
    text, path = json.dumps(header | sums), Path(os.path.realpath(path))
    if os.path.lexists(path) and not path.is_file():
        raise OSError(f"cannot write {path}: it is there and is no regular file; name another")
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete_on_close=False) as draft:
            save_file(dict(tensors), draft.name, {_KEY: text, _SUM: _digest(text.encode())})
            with open(draft.name, "rb+") as written:
                os.fsync(written.fileno())
            os.chmod(draft.name, 0o644)
            os.replace(draft.name, path)
        _flush_folder(path.parent)
    except (OSError, SafetensorError) as error:
        raise OSError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from error


def _flush_folder(folder: Path) -> None:
    """The new name is on the disk when this returns."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read(path: Path, *, kind: Kind) -> tuple[dict[str, PyTree], dict[str, jax.Array]]:
    """(header, arrays) of a file, every checksum compared.

    Args:
        kind: what it should hold.

    Raises:
        FileNotFoundError: no such file.
        ValueError: cut short, damaged, or no file of kvjax.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is no file: write one with {kind.made_by}")
    try:
        with safe_open(path, framework="flax") as file:
            header = _header(path, file.metadata(), kind)
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error, kind) from error
    _compare(path, header.pop("checksums"), tensors, kind)
    return header, _inflated(path, header.pop("deflated", None), tensors, kind)


def _inflated(
    path: Path, kinds: dict[str, list] | None, tensors: dict[str, jax.Array], kind: Kind
) -> dict[str, jax.Array]:
    """The arrays as they were before `write` compressed them."""
    if kinds is None:
        return tensors
    try:
        return {name: inflated(x, *kinds[name]) for name, x in tensors.items()}
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} holds arrays unlike its header ({error}): write it again with {kind.made_by}") from error


def header_of(path: Path, *, kind: Kind) -> dict[str, object]:
    """The header alone, as `read` gives it; the arrays stay where they are.

    Raises:
        FileNotFoundError, ValueError: as `read`, but for damage to the arrays.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is no file: write one with {kind.made_by}")
    try:
        with safe_open(path, framework="flax") as file:
            header = _header(path, file.metadata(), kind)
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error, kind) from error
    del header["checksums"]
    header.pop("deflated", None)
    return header


def check_version(path: Path, header: dict[str, object], version: int) -> None:
    """Raise ValueError for a header of another version."""
    if header["version"] != version:
        raise ValueError(f"{path} has version {header['version']}, this kvjax reads {version}: make it and save it again")


def _unreadable(path: Path, error: Exception, kind: Kind) -> ValueError:
    return ValueError(f"{path} is cut short, damaged or no safetensors file ({error}): write it again with {kind.made_by}")


def checksum(x: jax.Array | np.ndarray) -> str:
    """Sixteen hexadecimal digits of an array's bytes, shape and dtype."""
    array = np.ascontiguousarray(np.asarray(x))
    return _digest(f"{array.dtype} {array.shape}".encode(), array.reshape(-1).view(np.uint8).data)


def _digest(*parts: PyTree) -> str:
    found = hashlib.blake2b(digest_size=8)
    for part in parts:
        found.update(part)
    return found.hexdigest()


def _header(path: Path, metadata: dict[str, str] | None, kind: Kind) -> dict[str, object]:
    found = metadata or {}
    if _KEY not in found:
        raise ValueError(f"{path} holds no {kind.holds}: write one with {kind.made_by}")
    if found.get(_SUM) != _digest(found[_KEY].encode()):
        raise ValueError(f"the header of {path} is damaged or was edited: write it again with {kind.made_by}")
    header = json.loads(found[_KEY])
    if header.pop("holds", kind.holds) != kind.holds:
        raise ValueError(f"{path} holds another kind of thing than a {kind.holds}: write one with {kind.made_by}")
    return header


def _compare(path: Path, wanted: dict[str, str], tensors: dict[str, jax.Array], kind: Kind) -> None:
    found = {name: checksum(x) for name, x in tensors.items()}
    wrong = sorted(name for name in wanted | found if wanted.get(name) != found.get(name))
    if wrong:
        raise ValueError(f"{path} is damaged: {', '.join(wrong[:4])} are not what was written; write it again with {kind.made_by}")
