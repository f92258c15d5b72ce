"""The C++ kernels compiled for this processor, once a machine, and made known to XLA.

The library is kept in `kvjax.user_folder.cache_folder()` under a digest of all that goes into it: sources, jaxlib,
compiler, processor.
"""

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Lock

import jax
import jaxlib.version
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import PyTree

from kvjax.user_folder import cache_folder

#: In the order in which they are compiled: those that take longest first.
SOURCES = (
    "products_stretch.cc", "products_listed.cc", "weighted_stretch.cc", "weighted_listed.cc", "packed_attention.cc", "attention.cc",
    "attention_with_weights.cc", "linear.cc", "codebook.cc", "prefill.cc", "sparse_attention.cc",
    "column_sums.cc", "quadratic_forms.cc", "window.cc", "values.cc", "top.cc", "top_p.cc", "softmax.cc",
)  # fmt: skip
CALLS = tuple(
    f"kvjax_{name}"
    for name in (
        "ragged_attention", "ragged_scores", "gather_attention", "codebook_scores", "linear", "select_top_p", "select_top",
        "softmax", "attention_with_weights", "weighted_values", "packed_attention", "prefill_attention", "column_sums",
        "attention_and_column_sums", "sparse_attention", "window_scores", "gated_linear", "quadratic_forms", "list_top",
    )
)
#: -ffp-contract: a product and its sum rounded once; nothing that lets the compiler reorder sums.
FLAGS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fPIC", "-shared")

_log = logging.getLogger(__name__)
#: What this process compiles at the moment: the compilers, and the folder that they write into.
_at_work: dict["Compilers", Path] = {}


def call(name: str, *arrays: PyTree, shapes: PyTree, dtype: DTypeLike = np.float32, **attributes: object) -> PyTree:
    """The results, of `shapes`, of the custom call `kvjax_<name>`; `missing()` has to be None."""
    results = jax.tree.map(lambda shape: jax.ShapeDtypeStruct(shape, dtype), shapes, is_leaf=lambda x: isinstance(x, tuple))
    return jax.ffi.ffi_call(f"kvjax_{name}", results, vmap_method="sequential")(*arrays, **attributes)


@cache
def missing() -> str | None:
    """Why the kernels cannot be used in this process, or None; the first call on a machine compiles them, in under a minute."""
    reason = _loaded()
    if reason:
        _log.warning("on a CPU XLA's kernels are used, which are slower than ours in C++: %s", reason)
    return reason


@cache
def has_pairs() -> bool:
    """Whether this processor multiplies bfloat16 two at a time; `missing()` has to be None."""
    return bool(ctypes.CDLL(str(built())).kvjax_has_pairs())


def _loaded() -> str | None:
    try:
        library = ctypes.CDLL(str(built()))
    except FileNotFoundError as error:
        return str(error)
    except subprocess.CalledProcessError as error:
        return f"did not compile: {error.stderr.strip()[-500:]}"
    except (OSError, subprocess.SubprocessError) as error:
        return f"could not be built or loaded: {error}"
    for name in CALLS:
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(library, name)), platform="cpu")
    return None


def built() -> Path:
    """The compiled library; compiles it, with $CXX, else c++, g++ or clang++, if this machine has not yet, and says so on stderr.

    Raises:
        FileNotFoundError: there is no compiler.
        subprocess.SubprocessError: it fails, or takes more than five minutes.
    """
    compiler, folder = _compiler(), Path(__file__).parent
    target = cache_folder() / "native" / f"{_digest(compiler, folder)}.so"
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    said = f"kvjax: compiling its CPU kernels with {compiler}, once on this machine, into {target} (under a minute)"
    print(said, file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix=".native-", dir=target.parent) as work:
        made = Path(work) / target.name
        _compile(compiler, folder, made)
        os.replace(made, target)
    return target


def _compile(compiler: str, folder: Path, made: Path) -> None:
    """The sources, one beside the other, into one library; no compiler outlives this, whatever ends it."""
    objects = {name: str(made.with_name(f"{name}.o")) for name in SOURCES}
    includes = "-isystem", jax.ffi.include_dir()
    compilers, pool = Compilers([compiler, *FLAGS]), ThreadPoolExecutor(os.cpu_count())
    _at_work[compilers] = made.parent
    try:
        list(pool.map(lambda name: compilers.run(*includes, "-c", str(folder / name), "-o", objects[name]), SOURCES))
        # not on this thread: an interruption finds it waiting, and the compiler known
        pool.submit(compilers.run, *objects.values(), "-o", str(made)).result()
    finally:
        compilers.stop()
        pool.shutdown()
        del _at_work[compilers]


def abandon() -> None:
    """End what is being compiled and delete what it wrote: for a process that ends without leaving its blocks."""
    for compilers, folder in list(_at_work.items()):
        compilers.stop()
        shutil.rmtree(folder, ignore_errors=True)


class Compilers:
    """Compilers at work, each in a process group of its own with what it starts.

    Args:
        command: what every one of them is called by.   timeout: seconds that each may take.
    """

    def __init__(self, command: list[str], timeout: float = 300) -> None:
        self._command, self._timeout = command, timeout
        self._lock, self._working, self._stopped = Lock(), set(), False

    def run(self, *arguments: str) -> None:
        """Run one to its end. Raises subprocess.SubprocessError: it fails, takes too long, or `stop` was called."""
        with self._lock:
            if self._stopped:
                raise subprocess.SubprocessError("no compiler begins any more")
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
            process = subprocess.Popen([*self._command, *arguments], text=True, start_new_session=True, **pipes)
            self._working.add(process)
        try:
            said, complaint = process.communicate(timeout=self._timeout)
        except subprocess.TimeoutExpired:
            self.stop()
            raise
        finally:
            with self._lock:
                self._working.discard(process)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, process.args, said, complaint)

    def stop(self) -> None:
        """End all of them, and let no other begin."""
        with self._lock:
            self._stopped = True
            for process in self._working:
                if process.poll() is None:
                    with suppress(ProcessLookupError):  # it ended by itself just now
                        os.killpg(process.pid, signal.SIGKILL)


def _compiler() -> str:
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    found = next((path for path in map(shutil.which, names) if path), None)
    if found is None:
        raise FileNotFoundError(f"needs a C++ compiler (install g++, or set CXX); there is no {', '.join(names)}")
    return found


def _digest(compiler: str, folder: Path) -> str:
    """Of the sources and of everything else that the compiled code depends on."""
    version = subprocess.run([compiler, "--version"], check=True, capture_output=True, timeout=60).stdout
    parts = [version, _processor().encode(), jaxlib.version.__version__.encode(), " ".join(FLAGS).encode()]
    parts += [path.read_bytes() for path in sorted((*folder.glob("*.cc"), *folder.glob("*.h")))]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _processor() -> str:
    """What -march=native looks at: a home folder may be shared by machines with other processors."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    kinds = {line for line in lines if line.startswith(("flags", "Features", "model name", "cpu family"))}
    return "\n".join([platform.machine(), platform.processor(), *sorted(kinds)])
