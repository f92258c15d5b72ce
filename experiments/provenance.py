"""What a result must carry to be repeated: versions, commit, machine."""

import hashlib
import os
import platform
import re
import subprocess
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@cache
def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide a result."""
    packages = ("jax", "jaxlib", "numpy", "transformers", "kvjax")
    return {"python": platform.python_version()} | {name: _version(name) for name in packages}


@cache
def commit() -> str | None:
    """The git commit of this checkout, with `+` when tracked files differ from it; None outside a checkout."""
    head = _git("rev-parse", "--short=12", "HEAD")
    return head and head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")


@cache
def machine() -> str:
    """Processor, usable cores, memory and the accelerator JAX runs on."""
    import jax

    device = jax.devices()[0]
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{_processor()}, {len(os.sched_getaffinity(0))} cores, {gib:.0f} GiB, jax on {device.device_kind}"


def cores(machine: str) -> int | None:
    """The usable cores that `machine` tells; None where it tells none."""
    found = re.search(r", (\d+) cores", machine)
    return int(found[1]) if found else None


def digest(parts: Iterable[bytes]) -> str:
    """Twelve hexadecimal digits of the SHA-256 of all parts, one after the other: the name of a text or a file in result rows."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()[:12]


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _git(*command: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", ROOT, *command], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
