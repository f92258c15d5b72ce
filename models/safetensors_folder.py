"""A Hugging Face folder: config.json and safetensors, in one file or in shards with an index."""

import re
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from models.files import read_json, regular
from models.numbers import one_line

#: A shard's name as an index may give it: below its folder, nowhere else.
_SHARD = re.compile(r"(?:\w[\w.-]*/)*\w[\w.-]*\.safetensors", re.ASCII)
#: Tensors of a decoder that was saved without its head, as embedding models are: their names lack "model.".
_BARE = re.compile(r"(embed_tokens|norm|layers\.\d+)\.")
#: A file whose dtype NumPy does not have fails with AttributeError or TypeError, not with an error of its own.
_UNREADABLE = (SafetensorError, OSError, ValueError, AttributeError, TypeError, OverflowError, MemoryError)


class SafetensorsFolder:
    """The tensors of a folder (see `weights.Tensors`); headers are read here, values in `read`.

    Names that lack the "model." before them get it.

    Raises:
        FileNotFoundError: no safetensors, or a shard that the index names is not there.
        OSError: a file that is no regular file.
        ValueError: a file that is cut short or damaged, by name; an index that names no files of its folder.
    """

    def __init__(self, folder: Path) -> None:
        self.origin = str(folder)
        self._place: dict[str, tuple[Path, str]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for path in _files(folder):
            for inside, shape in _header(path).items():
                name = f"model.{inside}" if _BARE.match(inside) else inside
                if name in self._place:
                    raise ValueError(f"{name!r} is in both {self._place[name][0]} and {path}; remove one of the files")
                self._place[name], self.shapes[name] = (path, inside), shape

    def read(self, name: str) -> np.ndarray:
        """Return one tensor. The file is mapped anew each time, so that pages already copied are given back."""
        path, inside = self._place[name]
        try:
            with safe_open(path, framework="numpy") as file:
                return file.get_tensor(inside)
        except _UNREADABLE as error:
            raise ValueError(_damaged(path, error)) from error


def _files(folder: Path) -> list[Path]:
    # one whole file comes before shards, as in transformers: an index may be left over from another
    whole = regular(folder / "model.safetensors")
    if whole.is_file():
        return [whole]
    index = regular(folder / "model.safetensors.index.json")
    if index.is_file():
        files = [regular(folder / name) for name in _shards(index)]
        if absent := [path.name for path in files if not path.is_file()]:
            raise FileNotFoundError(f"{folder} lacks {', '.join(absent)}, which {index.name} names; download them")
        return files
    files = sorted(map(regular, folder.glob("*.safetensors")))
    if not files:
        raise FileNotFoundError(f"{folder} has no *.safetensors; convert other formats to safetensors first")
    return files


def _shards(index: Path) -> list[str]:
    """The files that an index names, each once."""
    where = read_json(index).get("weight_map")
    if not isinstance(where, dict) or not where:
        raise ValueError(f'{index}: expected {{"weight_map": {{TENSOR: FILE, ...}}}}, got {where!r:.60}; download it again')
    strange = [name for name in where.values() if not isinstance(name, str) or not _SHARD.fullmatch(name)]
    if strange:
        raise ValueError(f"{index}: expected names of *.safetensors below its folder, got {strange[0]!r:.60}; download it again")
    return sorted(set(where.values()))


def _header(path: Path) -> dict[str, tuple[int, ...]]:
    try:
        with safe_open(path, framework="numpy") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}
    except _UNREADABLE as error:
        raise ValueError(_damaged(path, error)) from error


def _damaged(path: Path, error: Exception) -> str:
    return f"{path} is cut short, damaged or no safetensors file ({one_line(error)}); download it again"
