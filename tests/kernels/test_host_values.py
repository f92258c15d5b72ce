"""Rows in pinned host memory in programs compiled for an H200 that is not there: what the compiled modules say of them."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compute_on import compute_on

from . import deviceless

deviceless.require()

import kvjax  # noqa: E402
from kvjax.encode import OnHost, Stored  # noqa: E402
from kvjax.kernels.compact import Moves  # noqa: E402
from kvjax.placement.store import on_host  # noqa: E402
from tests.conftest import policy_of  # noqa: E402
from tests.decode_loop import copies, decode, operands, pools  # noqa: E402

SLOTS = 1 << 18
POLICIES = {
    "full": policy_of("full").replace(encode=Stored(placement=OnHost())),
    "hcattention": policy_of("hcattention"),
    "heterocache": policy_of("heterocache"),
}
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?(%\S+) = .*? ([a-z-]+)\(([^()]*)")
#: Instructions of a schedule that are work for the device.
_WORK = {"fusion", "while", "custom-call", "sort", "reduce", "scatter"}


def program_of(lm, policy):
    """The whole decode loop over pools of 2**18 slots, and the cache it was compiled for."""
    args = operands(lm, kvjax.prefill(lm, list(range(90)), needs=policy), policy, SLOTS)
    options = {"xla_gpu_enable_latency_hiding_scheduler": True}
    return deviceless.compiled(decode._loop, *args, width=64, keep_logits=False, options=options), args[2]


def meanwhile(text: str) -> list[list[str]]:
    """For every host computation, in a module's schedule, the work for the device between its start and its done."""
    waiting, found = {}, []
    for name, kind, given in (m.groups() for m in map(_INSTRUCTION.match, text.splitlines()) if m):
        if kind == "custom-call-start":
            waiting[name] = []
        elif kind == "custom-call-done":
            found.append(waiting.pop(given))
        elif kind in _WORK:
            for work in waiting.values():
                work.append(kind)
    return found


@pytest.mark.parametrize("name", ["full", *(pytest.param(name, marks=pytest.mark.slow) for name in ("hcattention", "heterocache"))])
def test_decode_beside_host_memory(name, lm):
    """Pool and host rows go in, come out, and are never copied; while the host works, so does the device."""
    program, cache = program_of(lm, POLICIES[name])
    text, memory = program.as_text(), program.memory_analysis()
    pool, held = sum(x.nbytes for x in pools(cache) if not on_host(x)), cache.host_nbytes
    assert pool >= SLOTS * 4 and (held >= SLOTS * 64) == (cache.placement == OnHost())
    assert memory.alias_size_in_bytes >= pool and memory.temp_size_in_bytes < SLOTS  # not a byte a slot
    assert memory.host_alias_size_in_bytes == held and memory.host_temp_size_in_bytes < 4096
    assert not copies(program, SLOTS) and text.count('custom_call_target="HostExecute"') == len(meanwhile(text))
    # one host computation a layer, while the device lists the next slots; or one that fetches satellites' keys and values
    assert len(meanwhile(text)) == (lm.decoder.layers if cache.placement == OnHost() else 1)
    assert all("fusion" in work for work in meanwhile(text))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pqcache", "magicpig", "fastdecode"])
def test_prompts_in_host_memory_stay_there(name, lm):
    """What a step reads of a prompt elsewhere is not written, and a layer has one host computation, with the device at work."""
    policy = policy_of(name)
    program, _ = program_of(lm, policy)
    text, memory = program.as_text(), program.memory_analysis()
    away = kvjax.compress(kvjax.prefill(lm, list(range(90)), needs=policy), policy).retrieval.elsewhere
    layers = int((np.asarray(away).sum((1, 2)) > 0).sum())
    assert memory.host_output_size_in_bytes == 0 and memory.host_temp_size_in_bytes < 4096
    assert not copies(program, SLOTS) and len(meanwhile(text)) == layers > 0
    assert all("fusion" in work for work in meanwhile(text))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["h2o", "d2o"])
def test_evicting_moves_host_rows_in_place(name, lm):
    program, cache = program_of(lm, policy_of(name).replace(encode=Stored(placement=OnHost())))
    memory = program.memory_analysis()
    assert memory.host_alias_size_in_bytes == cache.host_nbytes and memory.host_temp_size_in_bytes < 4096
    assert memory.temp_size_in_bytes < SLOTS and not copies(program, SLOTS)


@pytest.mark.parametrize("rows", [6, 40])
def test_append_writes_in_place(rows):
    """Without a loop, and with one."""
    home, at = OnHost(), jax.ShapeDtypeStruct((rows,), jnp.int32)
    append = jax.jit(home.append, donate_argnums=0)
    new = jax.ShapeDtypeStruct((rows, 64), jnp.float32)
    program = deviceless.compiled(append, home.empty(SLOTS, 64, jnp.bfloat16), at, new)
    text, memory = program.as_text(), program.memory_analysis()
    assert memory.host_alias_size_in_bytes == SLOTS * 64 * 2 and memory.host_temp_size_in_bytes == 0
    assert not copies(program, SLOTS) and "HostExecute" not in text and (" while(" in text) == (rows == 40)


def test_slots_move_in_place():
    """Rows packed, holes filled and merged rows written: by the device, into the memory the store has."""
    home, store = OnHost(), OnHost().empty(SLOTS, 64, jnp.bfloat16)
    ints = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.int32)  # noqa: E731
    rows, regions, lists = jax.ShapeDtypeStruct((2, 3, 500, 64), jnp.float32), ints(2, 3), ints(2, 3, 500)
    for write, given in {
        home.pick: (rows, lists, regions, regions),
        home.compact: (regions, Moves(regions, lists, lists, regions)),
        home.rewrite: (rows, lists, regions),
    }.items():
        program = deviceless.compiled(jax.jit(write, donate_argnums=0), store, *given)
        memory = program.memory_analysis()
        assert memory.host_alias_size_in_bytes == SLOTS * 64 * 2 and memory.host_temp_size_in_bytes < SLOTS
        assert not copies(program, SLOTS) and "HostExecute" not in program.as_text()


def test_a_copy_would_be_seen():
    """Rows written by a host computation: a new store, copied over the old one."""
    host = jax.memory.Space.Host
    write = compute_on(lambda store, at, rows: store.at[at].set(rows), compute_type="device_host", out_memory_spaces=host)
    put = jax.jit(lambda store, *new: write(store, *jax.device_put(new, host)), donate_argnums=0)
    operands = jax.ShapeDtypeStruct((6,), jnp.int32), jax.ShapeDtypeStruct((6, 64), jnp.float32)
    program = deviceless.compiled(put, OnHost().empty(SLOTS, 64, jnp.float32), *operands)
    assert copies(program, SLOTS) and program.memory_analysis().host_temp_size_in_bytes >= SLOTS * 64 * 4
