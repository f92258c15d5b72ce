"""Compile time of one decode step: the whole model, the policy's append, attention and eviction, from shapes alone."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.compilation_cache import compilation_cache

from experiments.bench import conditions
from experiments.bench.planned_cache import planned
from kvjax.decode.step import Spec, step
from kvjax.policy import Policy

#: Settings of JAX under which every program goes to the folder.
_KEEP_ALL = {"jax_persistent_cache_min_compile_time_secs": 0, "jax_persistent_cache_min_entry_size_bytes": -1}


def compiling(decoder: Any, policy: Policy, length: int, *, dtype: Any, done: Callable = lambda count: None) -> dict[str, Any]:
    """Compile the step of a cache of `length` tokens twice: into an empty persistent cache, and out of it.

    No weights or caches are allocated, so that the model may be of any size.

    Returns:
        conditions; seconds of tracing and lowering, of XLA's compiler, and of the second time, when the program is read back;
        files of the persistent cache after each time, as many the second time if it was; bytes of temporaries of a step.

    Raises:
        ValueError: a policy whose cache depends on the prompt.
    """
    lowered = _lowering(decoder, policy, length, dtype)
    seconds, entries, program = {}, [], None
    with tempfile.TemporaryDirectory() as folder, _persistent(folder):
        for when in ("", ", again"):
            jax.clear_caches()
            marks = [time.perf_counter()]
            found = lowered()
            marks.append(time.perf_counter())
            program = found.compile()
            marks.append(time.perf_counter())
            seconds |= {f"trace and lower{when}": marks[1] - marks[0], f"compile{when}": marks[2] - marks[1]}
            entries.append(len(list(Path(folder).iterdir())))
            done(1)
    shape = f"{decoder.layers} layers, width {decoder.config.width}, {length} tokens of context, batch 1"
    return conditions("compiling", str(jnp.dtype(dtype)), shape) | {
        "compile_seconds": seconds,
        "cache_entries": entries,
        "temporary_bytes": program.memory_analysis().temp_size_in_bytes,
    }


def _lowering(decoder: Any, policy: Policy, length: int, dtype: Any) -> Callable[[], Any]:
    """A function that lowers the step afresh."""
    cache = planned(decoder, policy, length, new=1, dtype=dtype)
    params = jax.eval_shape(lambda: decoder.init(jax.random.key(0), dtype))
    policies, form = jax.tree.flatten(policy)
    cap = cache.padding(policy)

    def run(params, policies, leaves):
        policy = jax.tree.unflatten(form, policies)
        spec = Spec.of(decoder, policy, cap)
        found = jax.tree.unflatten(cache.structure, leaves)
        return jax.tree.leaves(step(spec, params, found, jnp.zeros(1, jnp.int32), running=jnp.ones(1, bool)))

    return lambda: jax.jit(run, donate_argnums=2).lower(params, policies, [x for _, x in cache.leaves])


@contextmanager
def _persistent(folder: str) -> Iterator[None]:
    """JAX's persistent compilation cache in a folder of its own."""
    wanted = _KEEP_ALL | {"jax_compilation_cache_dir": folder}
    before = {name: getattr(jax.config, name) for name in wanted}
    for name, value in wanted.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
