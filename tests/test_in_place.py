"""Decoding writes the pool where it lies: no program copies it, whatever a method reads and writes."""

import jax
import jax.numpy as jnp
import pytest

import kvjax
from tests.conftest import policy_of
from tests.decode_loop import copies, decode, operands, pools, unchecked

SLOTS = 1 << 16
STATIC, EVICTING = ("full", "snapkv", "kivi"), ("streaming_llm", "h2o", "tova", "d2o", "less")
READING, MOVING = ("heterocache", "hcattention", "quest", "infllm", "fastdecode", "omnikv"), ("arkv", "mikv", "zipcache")
SHOWN = (*STATIC, *EVICTING, *READING, *MOVING)


def _decodes_like_snapkv(name: str) -> bool:
    """Whether only a prompt is cut, read twice or not, and what stays is stored and read as it is."""
    info = kvjax.methods.info(name)
    usual = (info.stages.get("encode"), info.stages.get("retrieve")) == ("Stored", "FullAttention")
    return "second pass" in info.requires or info.acts == "after the prompt" and usual


#: Six bytes a slot of this model: less than what a step may need beside the pool.
SMALL = ("coupled_quantization",)
OTHERS = [name for name in kvjax.methods.names() if name not in (*SHOWN, *SMALL) and not _decodes_like_snapkv(name)]


@pytest.mark.parametrize("name", [*SHOWN, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_the_pool_is_never_copied(lm, prompt, name):
    """It goes in and comes out, and what a step needs beside it grows with a head's slots, not with the pool's."""
    policy = policy_of(name)
    args = operands(lm, kvjax.prefill(lm, prompt, needs=policy), policy, SLOTS)
    with unchecked():
        program = decode._loop.lower(*args, width=64, keep_logits=False).compile()
    memory, pool = program.memory_analysis(), sum(x.nbytes for x in pools(args[2]))
    assert not copies(program, SLOTS) and memory.alias_size_in_bytes >= pool > SLOTS * 8
    assert memory.temp_size_in_bytes < SLOTS * 8


def test_what_pivots_remember_is_never_copied(lm, prompt):
    """A step writes what its queries chose where it lies; references and sort keys are touched at the end of a window alone."""
    policy = policy_of("heterocache")
    args = operands(lm, kvjax.prefill(lm, prompt, needs=policy), policy, SLOTS)
    state = args[2].retrieval
    with unchecked():
        program = decode._loop.lower(*args, width=64, keep_logits=False).compile()
    for x in (state.chosen, state.reference, state.asked):
        shape = ",".join(map(str, x.shape))
        assert f"[{shape}]" in program.as_text()
        assert not [line for line in program.as_text().splitlines() if f"[{shape}]" in line and " copy(" in line]


def test_a_copy_would_be_seen():
    """Nothing orders what reads this pool before what writes it."""

    def step(pool, x):
        return jax.lax.fori_loop(0, 3, lambda i, pool: pool.at[i].set(x), pool), jnp.sin(pool) @ x

    program = jax.jit(step, donate_argnums=0).lower(jnp.zeros((SLOTS, 8)), jnp.ones(8)).compile()
    assert copies(program, SLOTS) and program.memory_analysis().temp_size_in_bytes >= SLOTS * 32
