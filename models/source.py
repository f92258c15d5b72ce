"""From what a user names (folder, hub id, .gguf file, "smollm2-135m") to a path on this machine."""

import re
from pathlib import Path

from models import smollm2
from models.numbers import one_line

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_PATTERNS = ("*.json", "*.safetensors", "tokenizer*", "merges.txt", "*.jinja")
#: Files in folders, and the second copy of the weights that some Mistral repositories carry.
_IGNORED = ("*/*", "consolidated*")


def resolve(where: str | Path) -> Path:
    """Return the folder or .gguf file that `where` names, fetched first where it has to be.

    Raises:
        FileNotFoundError: no such folder or file, or a hub id that cannot be fetched; with what was tried.
        ValueError: none of the forms that are understood.
    """
    if str(where) == smollm2.NAME:
        return smollm2.folder(from_hub)
    path = _expanded(where)
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path
    if path.is_file():
        raise ValueError(f"{path}: expected a folder with config.json and *.safetensors, or a .gguf file")
    if isinstance(where, str) and _HUB_ID.fullmatch(where) and path.suffix != ".gguf":
        return from_hub(where)
    forms = f"a Hugging Face folder or id, a .gguf file or {smollm2.NAME!r}"
    raise FileNotFoundError(f"no folder or file {str(where)!r}; give {forms}")


def from_hub(name: str, patience: float = 5.0) -> Path:
    """Return the local snapshot of a hub repository, brought up to date if the hub answers within `patience` seconds.

    Raises:
        FileNotFoundError: neither the hub nor the local hub cache has it.
    """
    import huggingface_hub as hub

    try:
        # one small question first: the download itself retries for minutes where nothing answers
        hub.HfApi().model_info(name, timeout=patience)
        reached: Exception | None = None
    except Exception as error:  # offline mode, no route, no such repository, no access: the cache may still have it
        reached = error
    try:
        found = hub.snapshot_download(
            name,
            allow_patterns=list(_PATTERNS),
            ignore_patterns=list(_IGNORED),
            local_files_only=reached is not None,
            etag_timeout=patience,
        )
        return Path(found)
    except Exception as error:
        reason = one_line(reached or error)
        raise FileNotFoundError(
            f"no folder {name!r} here, and no model of that id to be had: {type(reached or error).__name__}: {reason}. "
            "Check the name and the network, or download the model and give its folder"
        ) from error


def _expanded(where: str | Path) -> Path:
    """`where` with ~ and ~USER put in full."""
    try:
        return Path(where).expanduser()
    except RuntimeError as error:  # no such user
        raise FileNotFoundError(f"no folder or file {str(where)!r}: there is no home folder of that name") from error
