"""Ctrl-C ends the command with 130 wherever it is, says so in one line, and leaves nothing behind."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import save_file

from experiments.interrupt import CODE, SAID
from tests.conftest import toy_config
from tests.experiments.conftest import TEXT, byte_tokenizer
from tests.models.conftest import tensors  # noqa: F401  a fixture

ROOT = Path(__file__).parents[2]
#: Neither this computation nor the next hears of a signal while it lasts: it is one call into C.
DEAF = "import hashlib; print('ready', flush=True); hashlib.pbkdf2_hmac('sha256', b'a', b'b', 2**31 - 1)"
SWALLOWED = """
import time
print("ready", flush=True)
while True:
    try:
        time.sleep(0.1)
    except BaseException:
        pass
"""
COLLECTS = """
import gc
from experiments import interrupt
interrupt.watch()
gc.callbacks.append(lambda phase, info: sum(range(10**6)))
try:
    print("ready", flush=True)
    while True:
        gc.collect()
        sum(range(10**6))
except KeyboardInterrupt:
    print("heard")
"""
#: For longer than the main thread is given to leave, nearly all of its time is in a destructor.
DESTROYS = """
import time
from experiments import interrupt
interrupt.watch()
end = time.monotonic() + 2 * interrupt.PATIENCE
class Slow:
    def __del__(self):
        while time.monotonic() < end:
            pass
try:
    print("ready", flush=True)
    while True:
        Slow()
except KeyboardInterrupt:
    print("heard")
"""


def hear() -> None:
    """A shell's background jobs ignore Ctrl-C, and what they start does, too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(*words: object, **environment: str) -> subprocess.Popen:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT, "start_new_session": True}
    environment = os.environ | {"JAX_PLATFORMS": "cpu"} | environment
    return subprocess.Popen([sys.executable, *map(str, words)], env=environment, preexec_fn=hear, **pipes)


def press(process: subprocess.Popen) -> str:
    """Ctrl-C; what the process says to it."""
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=120)[1]


@pytest.mark.parametrize("code", [DEAF, SWALLOWED], ids=["deaf", "swallowed"])
def test_a_main_thread_that_does_not_hear(code):
    process = start("-c", f"from experiments import interrupt; interrupt.watch()\n{code}")
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.5)  # for the call to begin
    assert press(process) == f"error: {SAID}\n" and process.returncode == CODE


@pytest.mark.parametrize("code", [COLLECTS, DESTROYS], ids=["collects", "destroys"])
def test_an_interruption_that_python_drops_is_raised_again(code):
    process = start("-c", code)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    said, complaint = process.communicate(timeout=120)
    assert (said, complaint) == ("heard\n", "")


def test_a_process_that_was_told_to_ignore_it_does():
    code = "import os, signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nfrom experiments import interrupt\ninterrupt.watch()\n"
    process = start("-c", code + "os.kill(os.getpid(), signal.SIGINT); print('done')")
    said, complaint = process.communicate(timeout=120)
    assert process.returncode == 0 and said == "done\n" and complaint == ""


@pytest.fixture
def model(tmp_path: Path, tensors: Callable) -> Path:  # noqa: F811
    """A random model that reads a long prompt for a minute or more."""
    folder = tmp_path / "model"
    folder.mkdir()
    sizes = dict(hidden_size=512, intermediate_size=1024, num_attention_heads=8, num_key_value_heads=4, head_dim=64)
    config = toy_config(vocab_size=257, max_position_embeddings=65536, architectures=["LlamaForCausalLM"], **sizes)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors(config, 1), folder / "model.safetensors")
    byte_tokenizer().inner.save_pretrained(folder)
    (folder / "prompt.txt").write_text(TEXT * 12)
    return folder


def generate(model: Path, **environment: str) -> subprocess.Popen:
    words = ("--model", model, "--policy", "snapkv", "--budget", "0.1", "--prompt-file", model / "prompt.txt")
    return start("-m", "experiments", "generate", *words, **environment)


COMPILER = """#!/bin/sh
if [ "$1" = --version ]; then echo "no compiler"; exit 0; fi
sleep 1000 &
echo "$$ $!" >> "$0.pids"
wait
"""


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and was not waited for yet does not."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


COMPILES_BESIDE = """
import threading
from experiments import interrupt
interrupt.watch()
from kvjax.kernels.native import library
threading.Thread(target=library.built, daemon=True).start()
"""


@pytest.mark.parametrize("deaf", [False, True])
def test_no_compiler_outlives_the_command(model, tmp_path, deaf):
    """Also where the main thread does not hear of Ctrl-C, and the process is ended from beside it."""
    compiler, pids = tmp_path / "cxx", tmp_path / "cxx.pids"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    places = {"CXX": str(compiler), "KVJAX_CACHE": str(tmp_path / "cache")}
    process = start("-c", COMPILES_BESIDE + DEAF, **places) if deaf else generate(model, **places)
    while not (pids.exists() and pids.read_text().endswith("\n")):
        assert process.poll() is None
        time.sleep(0.01)
    complaint = press(process)
    assert process.returncode == CODE and complaint.endswith(f"error: {SAID}\n")
    started = [int(pid) for pid in pids.read_text().split()]
    deadline = time.monotonic() + 60  # the system takes its time to end what was killed
    while any(map(alive, started)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(alive, started)) and list((tmp_path / "cache" / "native").iterdir()) == []


@pytest.mark.slow
def test_any_moment_of_a_long_prefill(model):
    draw = random.Random(7)
    for moment in [draw.uniform(0.3, 20) for _ in range(12)]:
        process = generate(model)
        time.sleep(moment)
        assert process.poll() is None
        complaint = press(process)
        assert process.returncode == CODE and complaint.endswith(f"error: {SAID}\n"), (moment, complaint)
        assert "terminate called" not in complaint and "Traceback" not in complaint
