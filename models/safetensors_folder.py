"""A Hugging Face folder: config.json and safetensors, in one file or in shards with an index."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open


class SafetensorsFolder:
    """The tensors of a folder (see `weights.Tensors`); headers are read here, values in `read`.

    Raises:
        FileNotFoundError: no safetensors, or a shard that the index names is not there.
        ValueError: a file that is cut short or damaged, by name.
    """

    def __init__(self, folder: Path) -> None:
        self.origin = str(folder)
        self._file: dict[str, Path] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for path in _files(folder):
            for name, shape in _header(path).items():
                if name in self._file:
                    raise ValueError(f"{name} is in both {self._file[name]} and {path}; remove one of the files")
                self._file[name], self.shapes[name] = path, shape

    def read(self, name: str) -> np.ndarray:
        """Return one tensor. The file is mapped anew each time, so that pages already copied are given back."""
        try:
            with safe_open(self._file[name], framework="numpy") as file:
                return file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ValueError(_damaged(self._file[name], error)) from error


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file. Raises FileNotFoundError, or ValueError naming the file where it is no JSON."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; a model folder holds config.json and *.safetensors")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON ({error}); download it again") from error


def _files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        files = sorted({folder / name for name in read_json(index)["weight_map"].values()})
        if absent := [path.name for path in files if not path.is_file()]:
            raise FileNotFoundError(f"{folder} lacks {', '.join(absent)}, which {index.name} names; download them")
        return files
    whole = folder / "model.safetensors"
    files = [whole] if whole.is_file() else sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{folder} has no *.safetensors; convert other formats to safetensors first")
    return files


def _header(path: Path) -> dict[str, tuple[int, ...]]:
    try:
        with safe_open(path, framework="numpy") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}
    except (SafetensorError, OSError) as error:
        raise ValueError(_damaged(path, error)) from error


def _damaged(path: Path, error: Exception) -> str:
    return f"{path} is cut short, damaged or no safetensors file ({error}); download it again"
