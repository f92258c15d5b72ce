"""Pytrees as a description in JSON and named arrays, and back.

A description has one node for each part of the tree: numbers and words stand for themselves, everything else is an object with one
of the keys tuple, list, dict, class, store, array, key, dtype or known. Classes are found by name among those that are imported
already, and only pytrees and modules of flax and named tuples count: nothing that a file names is imported, nothing is executed.
"""

import sys
from collections.abc import Mapping
from dataclasses import fields

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from kvjax.files.arrays import as_stored, read_as
from kvjax.placement.store import Store

#: Objects of the model, by name: a tree that holds one is given the model's own when it is read.
Known = Mapping[str, object]
_PLAIN = (bool, int, float, str, type(None))


def described(tree: PyTree, known: Known) -> tuple[PyTree, dict[str, PyTree]]:
    """(description, arrays by their paths in the tree, `rows.0.k.3`).

    Raises:
        ValueError: a part that no file can hold; says where it is.
    """
    arrays: dict[str, object] = {}
    return _describe(tree, "", known, arrays), arrays


def restored(description: PyTree, arrays: Mapping[str, jax.Array], known: Known) -> PyTree:
    """The tree that was described.

    Raises:
        ValueError: arrays that are not those of the description, or a class that is not there.
    """
    wanted = dict(_arrays_of(description))
    kinds = {name: (list(x.shape), str(x.dtype)) for name, x in arrays.items()}
    wrong = sorted(name for name in wanted | kinds if wanted.get(name) != kinds.get(name))
    if wrong:
        raise ValueError(f"has arrays that its header does not call for, or lacks some: {', '.join(wrong[:4])}")
    return _restore(description, arrays, known)


def below(path: str, name: object) -> str:
    """The path of a part of what is at `path`."""
    return f"{path}.{name}" if path else str(name)


def static_fields(x: PyTree) -> list[str]:
    """Names of the fields of a pytree, a module or a named tuple that make it what it is."""
    if isinstance(x, tuple):
        return list(x._fields)
    return [f.name for f in fields(x) if f.init and not (isinstance(x, nn.Module) and f.name in ("parent", "name"))]


def _describe(x: PyTree, path: str, known: Known, arrays: dict[str, object]) -> PyTree:
    for name, mine in known.items():
        if type(x) is type(mine) and x == mine:
            return {"known": name}
    if isinstance(x, Store):
        return {"store": _name_of(type(x), path)} | _put(arrays, path, as_stored(x.saved()))
    if isinstance(x, jax.Array | np.ndarray | np.generic):
        return _describe_array(x, path, arrays)
    if isinstance(x, _PLAIN):
        return x
    if type(x) in (tuple, list):
        return {type(x).__name__: [_describe(y, below(path, i), known, arrays) for i, y in enumerate(x)]}
    if type(x) is dict and all(isinstance(name, str) for name in x):
        return {"dict": {name: _describe(y, below(path, name), known, arrays) for name, y in x.items()}}
    if isinstance(x, np.dtype):
        return {"dtype": str(x)}
    kind = _name_of(type(x), path)
    parts = {name: _describe(getattr(x, name), below(path, name), known, arrays) for name in static_fields(x)}
    return {"class": kind, "fields": parts}


def _describe_array(x: PyTree, path: str, arrays: dict[str, object]) -> dict[str, object]:
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return {"key": str(jax.random.key_impl(x))} | _put(arrays, path, jax.random.key_data(x))
    where = x.sharding.memory_kind if isinstance(x, jax.Array) else "numpy"
    return {"array": [list(x.shape), str(x.dtype)], "memory": where} | _put(arrays, path, as_stored(x))


def _put(arrays: dict[str, object], path: str, stored: jax.Array) -> dict[str, object]:
    """An array under its path, and which one it is."""
    if path in arrays:
        raise ValueError(f"two parts of the tree are both named {path!r}: rename a key of a dictionary")
    arrays[path] = stored
    return {"of": path, "shape": list(stored.shape), "kind": str(stored.dtype)}


def _restore(node: PyTree, arrays: Mapping[str, jax.Array], known: Known) -> PyTree:
    if isinstance(node, _PLAIN):
        return node
    if "known" in node:
        return known[node["known"]]
    if "store" in node:
        return class_of(node["store"]).restored(np.asarray(arrays[node["of"]]))
    if "key" in node:
        return jax.random.wrap_key_data(arrays[node["of"]], impl=node["key"])
    if "array" in node:
        return read_as(arrays[node["of"]], *node["array"], memory=node["memory"])
    if "dtype" in node:
        return np.dtype(node["dtype"])
    if "dict" in node:
        return {name: _restore(y, arrays, known) for name, y in node["dict"].items()}
    if "class" in node:
        parts = {name: _restore(y, arrays, known) for name, y in node["fields"].items()}
        return class_of(node["class"])(**parts)
    made = [_restore(y, arrays, known) for y in node["tuple" if "tuple" in node else "list"]]
    return tuple(made) if "tuple" in node else made


def _arrays_of(node: PyTree) -> list[tuple[str, tuple[list[int], str]]]:
    """Name, shape and dtype of every array of a description, as the file holds it."""
    if isinstance(node, list):
        return [found for y in node for found in _arrays_of(y)]
    if not isinstance(node, dict):
        return []
    for inner in ("fields", "dict"):
        if inner in node:  # names of the tree's own, which may be any word
            return [found for y in node[inner].values() for found in _arrays_of(y)]
    if "of" in node:
        return [(node["of"], (node["shape"], node["kind"]))]
    return [found for y in node.values() for found in _arrays_of(y)]


def _name_of(kind: type, path: str) -> str:
    """Where a class is found again."""
    name = f"{kind.__module__}:{kind.__qualname__}"
    try:
        found = class_of(name)
    except ValueError:
        found = None
    if found is not kind:
        raise ValueError(
            f"{kind.__name__} at {path or 'the top'} cannot be saved: only arrays, numbers, words, tuples, lists, dictionaries and "
            "flax pytrees, modules and named tuples defined at the top of a module can"
        )
    return name


def class_of(name: str) -> type:
    """A pytree or module of flax, a named tuple, or a store, by `module:name`, if its module is imported.

    Raises:
        ValueError: there is none.
    """
    module, _, inner = str(name).partition(":")
    found = sys.modules.get(module)
    for part in inner.split("."):
        found = getattr(found, part, None)
    if isinstance(found, type):
        named = issubclass(found, tuple) and "_fields" in vars(found)
        if named or getattr(found, "_flax_dataclass", False) or issubclass(found, nn.Module | Store):
            return found
    raise ValueError(f"holds a {name!r}, which is no pytree of a module that is imported: import what made it first")
