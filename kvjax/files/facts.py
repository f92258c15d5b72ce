"""What a file remembers of a policy, so that it is refused for another."""

import dataclasses
import re

import jax
import numpy as np
from jaxtyping import PyTree

from kvjax.files.tensors import checksum
from kvjax.files.trees import below, static_fields


def facts_of_stage(x: PyTree, path: str = "") -> dict[str, object]:
    """Every number and word of a pytree of stages by its path, arrays by their checksums: what is equal has equal facts."""
    if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        return facts_of_stage(np.asarray(jax.random.key_data(x)), path)
    if isinstance(x, jax.Array | np.ndarray | np.generic):
        return {path: x.item() if x.ndim == 0 else f"{x.dtype} {list(x.shape)} {checksum(x)}"}
    if x is None or isinstance(x, bool | int | float | str):
        return {path: x}
    if isinstance(x, tuple | list):
        return _all({i: y for i, y in enumerate(x)}, path, type(x).__name__)
    if isinstance(x, dict):
        return _all(x, path, "dict")
    if isinstance(x, frozenset | set):
        return {path: sorted(map(_words, x))}
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return _all({name: getattr(x, name) for name in static_fields(x)}, path, _words(type(x)))
    return {path: _words(x)}


def _all(parts: dict[object, object], path: str, kind: str) -> dict[str, object]:
    found = {path or "policy": kind}
    for name, y in parts.items():
        found |= facts_of_stage(y, below(path, name))
    return found


def _words(x: PyTree) -> str:
    """A name or a repr that another process gives, too: no addresses."""
    name = getattr(x, "__qualname__", None)
    return re.sub(r" at 0x[0-9a-f]+", "", repr(x)) if name is None else f"{x.__module__}.{name}"


def differences(mine: dict[str, object], theirs: dict[str, object]) -> list[str]:
    """What differs, in words."""
    absent = "nothing"
    names = [name for name in mine | theirs if mine.get(name, absent) != theirs.get(name, absent)]
    return [f"{name}: the policy has {mine.get(name, absent)!r}, the file {theirs.get(name, absent)!r}" for name in names]
