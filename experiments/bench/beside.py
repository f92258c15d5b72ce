"""Running the peers in their own interpreters, beside ours and never at the same time."""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from kvjax import AfterPrefill
from kvjax.policy import Policy
from models import smollm2

#: Our methods that kvpress has too.
PRESSES = (
    "snapkv", "pyramidkv", "streaming_llm", "knorm", "keydiff", "tova", "adakv", "expected_attention", "ada_expected",
    "local_window",
)  # fmt: skip
SCRIPT, TORCH, RIVALS = (Path(__file__).with_name(name) for name in ("peers.py", "torch_attention.py", "rivals.py"))
#: What to do where an interpreter is missing, by the variable that names it.
WANTED = {
    "KVJAX_PEERS": "no peers measured: set $KVJAX_PEERS to a Python with torch, transformers 5.2 and kvpress 0.5.5",
    "KVJAX_RIVALS": "no llama.cpp or OpenVINO measured: set $KVJAX_RIVALS to a Python with llama-cpp-python and openvino-genai",
}


def interpreter(variable: str = "KVJAX_PEERS") -> Path | None:
    """The Python that a variable of the environment names, else that of /root/peers or /root/rivals; None where there is none."""
    path = Path(os.environ.get(variable) or f"/root/{variable.removeprefix('KVJAX_').lower()}/bin/python")
    return path if path.is_file() else None


def cell(method: str | None, share: float) -> dict[str, Any] | None:
    """A peers' cell: transformers' dynamic cache (None), or kvpress's press that keeps `share`; None if it has none."""
    if method is None:
        return {"name": "transformers, full cache", "press": None, "ratio": 0.0}
    if method not in PRESSES:
        return None
    return {"name": f"kvpress {method} {share:g}", "press": method, "ratio": 1.0 - share}


def once(policy: Policy) -> Policy:
    """The policy as kvpress runs its press: it cuts after the prompt, and never while decoding."""
    return policy.replace(when=AfterPrefill())


def peers(
    lm: Any, cells: Sequence[dict], prompts: Sequence[dict], *, dtype: str, rounds: int, new: int, stop: Sequence[int] = ()
) -> dict[str, Any]:
    """Times of the peers, or {"missing": why}.

    Args:
        lm: the model; the peers read the Hugging Face folder it came from.
        cells: from `cell`.
        prompts: {"context": ids, "fed": ids}.
        rounds: counted rounds after one that warms up; 0 counts the first.
        new: greedy steps after the fed tokens.
        stop: tokens that end them earlier.

    Returns:
        {"versions", "cells": {name: [{"prefill", "fed", "steps", "bytes"}]}}, seconds.
    """
    if interpreter() is not None and not Path(lm.origin).is_dir():
        return {"missing": f"no peers measured: they need a Hugging Face folder, the model came from {lm.origin}"}
    job = {"model": lm.origin, "dtype": dtype, "rounds": rounds, "new": new, "stop": list(stop)}
    return answer(SCRIPT, job | {"cells": list(cells), "prompts": list(prompts)})


def rivals(
    lm: Any, ids: Sequence[int], gguf: Path | None, *, dtype: str, rounds: int, new: int, slots: int | None = None
) -> dict[str, Any]:
    """Times of llama.cpp and of OpenVINO with the same weights, threads and prompt, or {"missing": why}.

    Args:
        lm: the model.   ids: the prompt.
        gguf: the model as a GGUF file of any type; None: the one it was loaded from, or SmolLM2's package.
        dtype: of weights and cache; llama.cpp multiplies 16-bit weights as float16.
        rounds: counted rounds after one that warms up.
        new: greedy steps after the prompt.
        slots: what OpenVINO's own eviction keeps; None: it is not measured.

    Returns:
        {"versions", "cells": {name: [{"prefill", "steps", "tokens"}]}, "missing": {engine: why}}, seconds.
    """
    if interpreter("KVJAX_RIVALS") is None:
        return {"missing": WANTED["KVJAX_RIVALS"]}
    job = {"dtype": dtype, "rounds": rounds, "new": new, "slots": slots, "context": list(ids)}
    try:
        with gguf_of(lm, gguf) as file:
            if file is None:
                return {"missing": f"no llama.cpp or OpenVINO measured: name {lm.name} as a GGUF file, --gguf FILE"}
            return answer(RIVALS, job | {"gguf": str(file)}, variable="KVJAX_RIVALS")
    except (OSError, subprocess.SubprocessError) as error:  # our own figures are worth having
        return {"missing": f"no llama.cpp or OpenVINO measured: {error}"}


def said(found: Mapping[str, Any]) -> Any:
    """Versions of the rivals and why one of them was not measured; or why neither was."""
    return found["versions"] | found["missing"] if "versions" in found else found["missing"]


@contextmanager
def gguf_of(lm: Any, given: Path | None) -> Iterator[Path | None]:
    """The model's GGUF file, which may be gone afterwards; None where there is none."""
    known = given or (Path(lm.origin) if lm.origin.endswith(".gguf") else None)
    if known is not None or lm.name != smollm2.NAME:
        yield known
        return
    with tempfile.TemporaryDirectory() as folder:
        yield smollm2.from_package(Path(folder))


def torch_attention(shapes: Mapping[str, Mapping[str, Any]], *, dtype: str, rounds: int, results: bool = False) -> dict[str, Any]:
    """Seconds of PyTorch's own attention on the kind of device that JAX has here, or {"missing": why}.

    Args:
        shapes: by name: the fields of a kernel's `Shape`, and layers.
        dtype: of queries, keys and values.
        rounds: counted runs of each.
        results: also give operands and results of what is timed, to be checked.

    Returns:
        {"versions", "cells": {shape: {"seconds": {way to attend: list}}}}.
    """
    device = "cpu" if jax.default_backend() == "cpu" else "cuda"
    job = {"shapes": shapes, "dtype": dtype, "rounds": rounds, "device": device, "results": results}
    # A core for each thread: on a busy machine both of two were seen to wait for each other on one, which takes 60 times as long.
    return answer(TORCH, job, OMP_PROC_BIND="true")


def answer(script: Path, job: Mapping[str, Any], variable: str = "KVJAX_PEERS", **environment: str) -> dict[str, Any]:
    """What a script of the peers prints, or {"missing": why}.

    Args:
        script: run in the peers' interpreter, as a process of its own that this one waits for; its last line is JSON.
        job: what it reads from the file it is given; the number of threads is added here.
        variable: which of `WANTED` names the interpreter.
        environment: variables of that process.
    """
    python = interpreter(variable)
    if python is None:
        return {"missing": WANTED[variable]}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.json"
        file.write_text(json.dumps({"threads": len(os.sched_getaffinity(0)), **job}))
        quiet = os.environ | {"TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"} | environment
        done = subprocess.run([python, script, file], capture_output=True, text=True, env=quiet)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        return {"missing": f"no peers measured: {script.name} failed: {last}"}
    return json.loads(done.stdout.strip().splitlines()[-1])
