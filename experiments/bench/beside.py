"""Running the peers in their own interpreter, beside ours and never at the same time."""

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvjax import AfterPrefill
from kvjax.policy import Policy

#: Our methods that kvpress has too.
PRESSES = (
    "snapkv", "pyramidkv", "streaming_llm", "knorm", "keydiff", "tova", "adakv", "expected_attention", "ada_expected",
    "local_window",
)  # fmt: skip
SCRIPT = Path(__file__).with_name("peers.py")


def interpreter() -> Path | None:
    """The peers' Python: $KVJAX_PEERS, else /root/peers/bin/python; None where there is none."""
    path = Path(os.environ.get("KVJAX_PEERS") or "/root/peers/bin/python")
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
    python = interpreter()
    if python is None:
        return {"missing": "no peers measured: set $KVJAX_PEERS to a Python with torch, transformers 5.2 and kvpress 0.5.5"}
    if not Path(lm.origin).is_dir():
        return {"missing": f"no peers measured: they need a Hugging Face folder, the model came from {lm.origin}"}
    threads = len(os.sched_getaffinity(0))
    job = {"model": lm.origin, "dtype": dtype, "threads": threads, "rounds": rounds, "new": new, "stop": list(stop)}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.json"
        file.write_text(json.dumps(job | {"cells": list(cells), "prompts": list(prompts)}))
        quiet = os.environ | {"TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        done = subprocess.run([python, SCRIPT, file], capture_output=True, text=True, env=quiet)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        return {"missing": f"no peers measured: {SCRIPT.name} failed: {last}"}
    return json.loads(done.stdout.strip().splitlines()[-1])
