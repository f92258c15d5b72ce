"""A Hugging Face folder: config.json and safetensors, in one file or in shards with an index."""

import re
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from models.files import read_json, regular
from models.numbers import one_line

#: A shard's name as an index may give it: below its folder, nowhere else.
_SHARD = re.compile(r"(?:\w[\w.-]*/)*\w[\w.-]*\.safetensors", re.ASCII)
#: A file whose dtype NumPy does not have fails with AttributeError or TypeError, not with an error of its own.
_UNREADABLE = (SafetensorError, OSError, ValueError, AttributeError, TypeError, OverflowError, MemoryError)


class SafetensorsFolder:
    """The tensors of a folder (see `weights.Tensors`); headers are read here, values in `read`.

    Raises:
        FileNotFoundError: no safetensors, or a shard that the index names is not there.
        OSError: a file that is no regular file.
        ValueError: a file that is cut short or damaged, by name; an index that names no files of its folder.
    """

    def __init__(self, folder: Path) -> None:
        self.origin = str(folder)
        self._file: dict[str, Path] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for path in _files(folder):
            for name, shape in _header(path).items():
                if name in self._file:
                    raise ValueError(f"{name!r} is in both {self._file[name]} and {path}; remove one of the files")
                self._file[name], self.shapes[name] = path, shape

    def read(self, name: str) -> np.ndarray:
        """Return one tensor. The file is mapped anew each time, so that pages already copied are given back."""
        try:
            with safe_open(self._file[name], framework="numpy") as file:
                return file.get_tensor(name)
        except _UNREADABLE as error:
            raise ValueError(_damaged(self._file[name], error)) from error


def _files(folder: Path) -> list[Path]:
    index = regular(folder / "model.safetensors.index.json")
    if index.is_file():
        files = [regular(folder / name) for name in _shards(index)]
        if absent := [path.name for path in files if not path.is_file()]:
            raise FileNotFoundError(f"{folder} lacks {', '.join(absent)}, which {index.name} names; download them")
        return files
    whole = regular(folder / "model.safetensors")
    files = [whole] if whole.is_file() else sorted(map(regular, folder.glob("*.safetensors")))
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
