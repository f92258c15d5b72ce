"""Where the files of a published data set are: on this machine, or fetched by the package `datasets`; `rows.load` reads them."""

from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Protocol

from experiments.tasks.dataset_files import datasets_folder


class Source(Protocol):
    """Where files of rows are; their rows follow one another."""

    def paths(self) -> tuple[Path, ...]: ...


@dataclass(frozen=True)
class Local:
    """A file of this machine."""

    file: Path

    def paths(self) -> tuple[Path, ...]:
        """The file. Raises FileNotFoundError where there is none."""
        if not self.file.is_file():
            raise FileNotFoundError(f"no file {self.file}: put the benchmark's {self.file.name} there, as it is published")
        return (self.file,)


@dataclass(frozen=True)
class Hub:
    """A file of the Hugging Face hub, such as hf://datasets/OWNER/NAME/FILE; `member` is a path inside it, if it is an archive."""

    url: str
    member: str = ""

    def paths(self) -> tuple[Path, ...]:
        """The fetched file, kept by the package. Raises ModuleNotFoundError without `datasets`, OSError unfetched."""
        try:
            import datasets
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"{self.url} is fetched with the package datasets: pip install datasets") from error
        manager = datasets.DownloadManager(download_config=datasets.DownloadConfig(cache_dir=datasets_folder() / "fetched"))
        try:
            if not self.member:
                return (Path(manager.download(self.url)),)
            return Local(Path(manager.download_and_extract(self.url)) / self.member).paths()
        except Exception as error:  # the package lets through those of its network client, of the hub and of archives
            raise OSError(f"cannot fetch {self.url}: {error}") from error


@dataclass(frozen=True)
class Parts:
    """A data set published in several files, such as one a subject."""

    sources: tuple[Source, ...]

    def paths(self) -> tuple[Path, ...]:
        """All files, in the order of `sources`."""
        return tuple(chain.from_iterable(source.paths() for source in self.sources))


@dataclass(frozen=True)
class LocalOrHub:
    """The file of this machine where it is there, else the hub's one or several."""

    local: Local
    hub: Source

    def paths(self) -> tuple[Path, ...]:
        """The files. Raises FileNotFoundError, saying both ways to get them, where neither has them."""
        if self.local.file.is_file():
            return self.local.paths()
        try:
            return self.hub.paths()
        except (ModuleNotFoundError, OSError) as error:
            raise FileNotFoundError(f"no file {self.local.file}: put the published file there, or else: {error}") from error
