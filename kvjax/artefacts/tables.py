"""Named arrays as an orbax checkpoint in a folder."""

import hashlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
    """Read tables of the shapes and dtypes given, by name.

    Raises:
        ValueError: a checkpoint that is lost, damaged or of other tables; nothing of their sizes is made before they are compared.
    """
    item = _with_bytes(shapes)
    if not item:
        return dict(shapes)
    import orbax.checkpoint as ocp

    how = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in item}
    with _named(path), checkpointer() as reading:
        held = reading.metadata(path).item_metadata
        if held is None:
            raise ValueError("what it says of itself is lost")
        _compare(held.tree, item)
        found = reading.restore(path, ocp.args.PyTreeRestore(item=item, restore_args=how))
    return {**shapes, **{name: np.asarray(x) for name, x in found.items()}}


def sums(path: Path) -> dict[str, str]:
    """A checksum of every file of a checkpoint, by its place in it."""
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()[:16] for file in files}


def check_sums(path: Path, told: Mapping[str, str]) -> None:
    """Raise ValueError where a file is lost, damaged or one too many: before orbax, whose threads complain for themselves."""
    found = sums(path)
    if differ := sorted(name for name in found | told if found.get(name) != told.get(name)):
        raise ValueError(f"{path} is damaged ({', '.join(differ[:4])} not as written): make it again")


def _compare(held: Mapping[str, PyTree], wanted: Mapping[str, np.ndarray]) -> None:
    theirs = {name: (str(np.dtype(x.dtype)), tuple(x.shape)) for name, x in held.items()}
    mine = {name: (str(x.dtype), x.shape) for name, x in wanted.items()}
    differ = sorted(name for name in theirs | mine if theirs.get(name) != mine.get(name))
    if differ:
        told = "; ".join(f"{name}: {theirs.get(name)} there, {mine.get(name)} expected" for name in differ[:4])
        raise ValueError(f"it holds other tables ({told})")


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Whatever a damaged checkpoint makes orbax raise becomes one line; what its threads log meanwhile is not shown."""
    loggers = [logging.getLogger(name) for name in ("concurrent.futures", "absl")]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    except Exception as error:
        words = " ".join(str(error).split())[:300]
        raise ValueError(f"{path} cannot be read ({words or type(error).__name__}): make it again") from error
    finally:
        for logger, was in zip(loggers, before, strict=True):
            logger.disabled = was


def _with_bytes(tables: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tables a checkpoint can hold: orbax takes none without elements; those are whole in the header already."""
    return {name: x for name, x in tables.items() if x.size}
