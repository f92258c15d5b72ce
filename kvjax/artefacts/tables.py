"""Named arrays as an orbax checkpoint in a folder."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import PyTree


def checkpointer() -> PyTree:
    """Orbax's, without its own opinions of steps and folders."""
    import orbax.checkpoint as ocp  # slow to import, and needed for files alone

    return ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=True, use_zarr3=True))


def write(path: Path, tables: Mapping[str, np.ndarray]) -> None:
    """Write all tables under a new name."""
    item = _with_bytes({name: np.asarray(x) for name, x in tables.items()})
    if item:
        with checkpointer() as saving:
            saving.save(path, item)


def read(path: Path, shapes: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Read tables of the shapes and dtypes given, by name."""
    item = _with_bytes(shapes)
    if not item:
        return dict(shapes)
    import orbax.checkpoint as ocp

    how = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in item}
    with checkpointer() as reading:
        found = reading.restore(path, ocp.args.PyTreeRestore(item=item, restore_args=how))
    return {**shapes, **{name: np.asarray(x) for name, x in found.items()}}


def _with_bytes(tables: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tables a checkpoint can hold: orbax takes none without elements; those are whole in the header already."""
    return {name: x for name, x in tables.items() if x.size}
