"""The mesh that a cache is spread over: devices in `rows` groups of rows, by `heads` groups of KV heads."""

from collections.abc import Callable
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

ROWS, HEADS = "rows", "heads"
#: One part of an array's first axis on every device: what each device holds by itself.
EACH = PartitionSpec((ROWS, HEADS))


def mesh(*, rows: int = 1, heads: int = 1, devices: object = None) -> Mesh:
    """Devices in a grid: each of the `rows` groups holds some rows of a batch, each device of a group some KV heads of them.

    Args:
        rows, heads: how many groups of each.   devices: which (default: the first rows · heads of all, of every process).

    Raises:
        ValueError: fewer devices than that.

    Example:
        mesh = kvjax.mesh(rows=2, heads=4)
    """
    every = jax.devices() if devices is None else list(devices)
    if min(rows, heads) < 1 or rows * heads > len(every):
        raise ValueError(f"a mesh of {rows} x {heads} takes {rows * heads} devices, at least one; there are {len(every)}")
    return Mesh(np.array(every[: rows * heads]).reshape(rows, heads), (ROWS, HEADS))


def sizes(mesh: Mesh | AbstractMesh) -> tuple[int, int]:
    """Groups of rows and groups of heads. Raises ValueError for a mesh of other axes."""
    if tuple(mesh.axis_names) != (ROWS, HEADS):
        raise ValueError(f"expected a mesh of the axes ({ROWS!r}, {HEADS!r}), as kvjax.mesh makes; got {mesh.axis_names}")
    return mesh.shape[ROWS], mesh.shape[HEADS]


def check_divides(mesh: Mesh | AbstractMesh, rows: int, heads: int) -> None:
    """Raise ValueError where a mesh divides neither these rows nor these KV heads evenly."""
    for what, has, into in (("rows", rows, sizes(mesh)[0]), ("KV heads", heads, sizes(mesh)[1])):
        if has % into:
            able = ", ".join(str(n) for n in range(1, has + 1) if has % n == 0)
            raise ValueError(f"a mesh of {into} along {what.split()[-1]!r} does not divide {has} {what}: use {able}")


def whole(x: jax.Array, mesh: Mesh) -> np.ndarray:
    """All of an array that lies on a mesh, in this process, wherever its parts are."""
    return np.asarray(x if x.is_fully_addressable else _everywhere(x, mesh))


def of_process(tree: PyTree) -> PyTree:
    """Arrays that lie on devices of several processes as arrays of this process alone; the others as they are."""

    def away(x):
        return isinstance(x, jax.Array) and not x.is_fully_addressable

    if not any(map(away, jax.tree.leaves(tree))):
        return tree
    return jax.tree.map(lambda x: _everywhere(x, x.sharding.mesh).addressable_data(0) if away(x) else x, tree)


def _everywhere(x: jax.Array, mesh: Mesh) -> jax.Array:
    """All of x on every device of the mesh."""
    return _gatherer(mesh)(x)


@cache
def _gatherer(mesh: Mesh) -> Callable[[jax.Array], jax.Array]:
    """The program of a mesh that brings an array everywhere."""
    return jax.jit(jnp.asarray, out_shardings=NamedSharding(mesh, PartitionSpec()))


def mesh_of(params: PyTree) -> Mesh | None:
    """The mesh that a model's weights lie on; None where they are on one device."""
    first = jax.tree.leaves(params)[0]
    where = first.sharding if isinstance(first, jax.Array) and not isinstance(first, jax.core.Tracer) else None
    return where.mesh if isinstance(where, NamedSharding) and tuple(where.mesh.axis_names) == (ROWS, HEADS) else None


def by_heads(x: PyTree, mesh: Mesh | None) -> PyTree:
    """Arrays [b, h, ...] with their KV heads over the devices of a group; as they are without a mesh."""
    return x if mesh is None else jax.device_put(x, NamedSharding(mesh, PartitionSpec(None, HEADS)))
