"""One cache over several devices is one device's: on eight simulated devices of a CPU, and in two processes."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import kvjax
from kvjax.codec import ChannelSeparable
from kvjax.decode.sharded_room import check_heads_apart
from kvjax.encode import BlockFlush, Stored

ROOT = Path(__file__).parents[2]


def start(devices: int, *words: object) -> subprocess.Popen:
    """A process of so many devices that runs cases of `tests.sharding.on_devices`."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    command = [sys.executable, "-W", "error::UserWarning", "-m", "tests.sharding.on_devices", *map(str, words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": ROOT}
    return subprocess.Popen(command, env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}, **pipes)


def holds(*processes: subprocess.Popen) -> None:
    """All processes end well."""
    try:
        said = [process.communicate(timeout=600)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert all(process.returncode == 0 for process in processes), "\n".join(said)[-4000:]


def test_tokens_bytes_and_balance_on_eight_devices():
    holds(start(8, "eight_devices"))


def test_codes_of_all_heads_are_refused_over_heads():
    """A device would make them of its own heads alone."""
    coded = Stored(values=ChannelSeparable(bits=4, block=8), window=BlockFlush(8))
    with pytest.raises(ValueError, match="coded by itself.*kvjax.mesh"):
        check_heads_apart(kvjax.Policy(encode=coded))


@pytest.mark.slow
@pytest.mark.parametrize("cases", ["sweep+page+in_place+methods+families", "experiment", "real_model"])
def test_on_eight_devices(cases):
    holds(start(8, cases))


@pytest.mark.slow
@pytest.mark.parametrize("rows, heads", [(1, 4)])
def test_two_processes_equal_one(rows, heads):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    holds(*(start(2, "process", index, port, rows, heads) for index in range(2)))
