"""From named tensors, read one by one, to the decoder's parameters; every disagreement reported in one error."""

import re
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from models.decoder import Decoder
from models.numbers import one_line

DTYPES = ("float32", "bfloat16", "float16")
_BUFFERS = re.compile(r".*rotary_emb\.(inv_freq|cos_cached|sin_cached)$")
_FLOATS = ("float64", "float32", "bfloat16", "float16")


@runtime_checkable
class Tensors(Protocol):
    """Where weights come from: shapes known at once, values only when asked, in Hugging Face's names and layout."""

    origin: str
    shapes: dict[str, tuple[int, ...]]

    def read(self, name: str) -> np.ndarray:
        """Return one tensor, a fresh copy that nothing else holds."""
        ...


def assemble(decoder: Decoder, names: dict[str, str], tensors: Tensors, dtype: str, where: PyTree = None) -> PyTree:
    """Return the parameters in `dtype`, streamed so that the peak stays near the model's own size.

    With `where` each tensor goes to its devices as soon as it has been read, every device getting its part alone.

    Args:
        decoder: says which parameters of which shapes there must be.
        names: our path -> the checkpoint's name, {l} standing for the layer (a family's NAMES).
        tensors: the checkpoint.
        dtype: float32, bfloat16 or float16.
        where: the sharding of every parameter (`models.divided.shardings`); None: all on one device.

    Raises:
        ValueError: tensors are missing, unexpected or misshapen (all of them listed);
            weights are not floating point, or not finite in `dtype` (all of them listed).
    """
    skeleton = jax.eval_shape(lambda key: decoder.init(key, dtype), jax.random.key(0))
    leaves, tree = jax.tree_util.tree_flatten_with_path(skeleton)
    wanted = {_name(path, names): leaf.shape for path, leaf in leaves}
    _check(wanted, tensors, tied=names["head.weight"] if decoder.config.tied else None)
    places = [None] * len(leaves) if where is None else jax.tree.leaves(where)
    placed = [_placed(_read(tensors, name, dtype), place) for name, place in zip(wanted, places, strict=True)]
    values, finite = zip(*placed, strict=True)
    finite = jax.device_get(finite)
    if bad := [name for name, good in zip(wanted, finite, strict=True) if not good]:
        reason = "the file is damaged" + (", or they exceed float16: try bfloat16" if dtype == "float16" else "")
        raise ValueError(f"{tensors.origin}: weights are NaN or infinite ({reason}): {_some(bad)}")
    return jax.tree_util.tree_unflatten(tree, values)


def dtype_name(dtype: Any) -> str:
    """Return float32, bfloat16 or float16, given as a name or a dtype. Raises ValueError for any other."""
    name = dtype if isinstance(dtype, str) else jnp.dtype(dtype).name
    if name not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    return name


def nbytes(params: PyTree) -> int:
    """Return the bytes of all leaves."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree_util.tree_leaves(params))


def _name(path: tuple[Any, ...], names: dict[str, str]) -> str:
    keys = [str(getattr(key, "key", getattr(key, "idx", None))) for key in path]
    if keys[0] != "layers":
        return names[".".join(keys)]
    return names[".".join(["layers", "{l}", *keys[2:]])].format(l=keys[1])


def _check(wanted: dict[str, tuple[int, ...]], tensors: Tensors, *, tied: str | None) -> None:
    found = {name: shape for name, shape in tensors.shapes.items() if not _BUFFERS.match(name)}
    if tied not in wanted:
        found.pop(tied, None)
    missing = [name for name in wanted if name not in found]
    unexpected = [name for name in found if name not in wanted]
    misshapen = [
        f"{name} (expected {shape}, got {found[name]})" for name, shape in wanted.items() if name in found and found[name] != shape
    ]
    groups = (("missing", missing), ("unexpected", unexpected), ("of another shape", misshapen))
    parts = [f"{len(group)} tensors {what}: {_some(group)}" for what, group in groups if group]
    if parts:
        raise ValueError(f"{tensors.origin}: the weights do not fit the config: {'; '.join(parts)}")


def _read(tensors: Tensors, name: str, dtype: str) -> np.ndarray:
    value = tensors.read(name)
    if value.dtype.name not in _FLOATS:
        raise ValueError(f"{tensors.origin}: {name} is {value.dtype}; expected one of {', '.join(_FLOATS)}")
    # values beyond float16 become inf here and are named by the check that follows
    with np.errstate(over="ignore"):
        return value.astype(jnp.dtype(dtype), copy=False)


def _placed(value: np.ndarray, place: jax.sharding.Sharding | None) -> tuple[jax.Array, jax.Array | np.bool_]:
    """A tensor on its devices, a process making the parts of its own, and whether it is finite: asked where it is whole."""
    if place is None:
        whole = jnp.asarray(value)
        return whole, _finite(whole)
    return jax.make_array_from_callback(value.shape, place, value.__getitem__), np.isfinite(value).all()


@jax.jit
def _finite(value: jax.Array) -> jax.Array:
    return jnp.all(jnp.isfinite(value))


def _some(names: list[str], most: int = 40) -> str:
    return ", ".join(one_line(name) for name in names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
