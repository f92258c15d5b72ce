"""Shared fixtures: run-time type checks, a toy model, counters of traces and compilations."""

import os
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
if os.environ["JAX_PLATFORMS"] == "cpu":
    # Thousands of programs run once or twice each: compiled soon, in one piece, and without the emitters that set up MLIR anew for
    # every fusion and take half of the compiler's time. `XLA_FLAGS= python -m pytest` tests what users run.
    soon = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
    os.environ.setdefault("XLA_FLAGS", f"{soon} --xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters")
# What XLA compiles is shared by the workers, by processes that tests start and by the next run; `--cache-clear` forgets it. Small
# programs, which most are, are compiled again in the time that writing and reading them takes.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache/d/xla"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")

from jaxtyping import install_import_hook  # noqa: E402

with install_import_hook(["kvjax", "models"], "beartype.beartype"):
    import kvjax
    import models

import gc  # noqa: E402
import logging  # noqa: E402
import re  # noqa: E402
import time  # noqa: E402
from collections import Counter  # noqa: E402
from contextlib import contextmanager  # noqa: E402
from dataclasses import replace  # noqa: E402

import jax  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

from experiments import memory_maps  # noqa: E402
from kvjax.cache.kv_cache import BY_ROW  # noqa: E402
from kvjax.kernels.native import missing  # noqa: E402
from models import llama  # noqa: E402
from tests import long_tests  # noqa: E402
from tests.method_cases import case  # noqa: E402

gc.freeze()  # a million objects that imports have left stay: the collector need not look through them again and again
gc.set_threshold(100_000, 20, 100)  # tracing makes many objects, and a tenth of a test's time is spent on looking for rings of them


#: Files that keep a worker busy for long, roughly the longest first.
LONGEST = (
    "golden/test_open", "test_batches", "kills/test_kills", "test_notebooks", "test_spine", "methods/test_coded_methods",
    "test_errors", "experiments/test_experiments_grid", "crossings/test_matrix", "prefill/test_streaming", "test_real_model",
    "train/test_kills", "test_d2o", "methods/test_zipcache", "test_evict", "test_core", "methods/test_kivi", "methods/test_fastgen",
    "methods/test_asymkv", "test_hcattention", "episodes/test_episodes", "methods/test_infllm", "methods/test_mikv",
    "experiments/test_executors", "experiments/test_experiments_conversation", "experiments/test_experiments_interrupt",
    "experiments/test_experiments_plan", "methods/test_cam", "methods/test_turboquant", "methods/test_lazy_eviction",
    "methods/test_scissorhands", "methods/test_gear",
)  # fmt: skip


LONG = long_tests.names()

#: When the last test may begin, in seconds as `date +%s` counts them: a run that has no more time says what it left out.
UNTIL = float(os.environ.get("KVJAX_TESTS_UNTIL", "inf"))


def pytest_configure(config):
    """Workers take whole files in the order below; by default pytest-xdist hands out those of few tests last, however long."""
    config.option.loadscopereorder = False


def pytest_itemcollected(item):
    """Tests that take long are slow ones (`tests/long_tests.py`)."""
    if item.nodeid in LONG:
        item.add_marker("slow")


@pytest.hookimpl(trylast=True)  # of the tests that are selected
def pytest_collection_modifyitems(items):
    """With workers, the longest files first and then those of many tests: no worker waits for a long one that began last.

    A run that may end before its last test begins with another file each time ($KVJAX_TESTS_TURN).
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        rank = {Path(__file__).parent / f"{name}.py": place for place, name in enumerate(LONGEST)}
        tests = Counter(item.path for item in items)
        files = sorted(tests, key=lambda path: (rank.get(path, len(rank)), -tests[path], path))
        turn = int(os.environ.get("KVJAX_TESTS_TURN", 0))
        place = {path: (at - turn) % len(files) for at, path in enumerate(files)}
        items.sort(key=lambda item: place[item.path])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """Nothing begins after `UNTIL`."""
    if time.time() > UNTIL:
        pytest.skip("not run: the time of this run was up ($KVJAX_TESTS_UNTIL)")


def toy_config(**changes) -> dict:
    """A three-layer Llama small enough to compile in seconds: 2 KV heads, groups of 2, head dimension 16."""
    config = dict(
        model_type="llama", hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, vocab_size=128, max_position_embeddings=1024, rms_norm_eps=1e-5,
        rope_parameters={"rope_theta": 10000.0, "rope_type": "default"}, tie_word_embeddings=False, hidden_act="silu",
    )  # fmt: skip
    return {**config, **changes}


@pytest.fixture(scope="session")
def native() -> None:
    """The C++ kernels, compiled if this machine has not yet."""
    if reason := missing():
        pytest.skip(reason)


def toy_model() -> models.LanguageModel:
    """The toy model with peaked attention, so that scores have margins."""
    made = models.random(llama.config(toy_config()), seed=0)
    sharper = lambda path, x: 2.0 * x if any("proj" in str(p) and str(p)[2] in "qk" for p in path) else x  # noqa: E731
    return made.replace(params=jax.tree_util.tree_map_with_path(sharper, made.params))


@pytest.fixture(scope="session")
def lm() -> models.LanguageModel:
    """`toy_model`, made once."""
    return toy_model()


def windowed(lm: models.LanguageModel, windows: tuple[int | None, ...]) -> models.LanguageModel:
    """The same weights, layer by layer read through a sliding window."""
    return lm.replace(decoder=replace(lm.decoder, config=replace(lm.decoder.config, windows=windows)))


def ids_of(length: int, seed: int = 0) -> list[int]:
    """A prompt of random tokens."""
    return np.random.default_rng(seed).integers(0, 128, length).tolist()


#: An allocator or a selector as `compress` calls it, compiled once a shape: (stage, ranking, slots).
run_stage = jax.jit(lambda stage, ranking, slots: stage(ranking, slots))


@pytest.fixture(scope="session")
def prompt() -> list[int]:
    return ids_of(90)


@pytest.fixture(scope="session")
def pre(lm, prompt):
    """The prompt, prefilled with everything that any method reads."""
    return kvjax.prefill(lm, prompt, needs=everything())


def alive() -> list[jax.Array]:
    """Every array that somebody holds: not those of cycles that tracing left and the collector has not met yet."""
    gc.collect()
    return jax.live_arrays()


@pytest.fixture
def set_aside():
    """Collections look through what the test makes, not through the millions of objects that a long run holds."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def live_bytes() -> int:
    """Bytes of them."""
    return sum(x.nbytes for x in alive())


#: Memory maps that leave room for those of twenty tests.
TWENTY_TESTS_FIT = 40_000


@pytest.fixture(autouse=True, scope="module")
def forget_programs():
    """Every compiled program holds memory maps of the process, of which Linux grants 65,530: looked at when a module ends."""
    yield
    memory_maps.forget_programs(TWENTY_TESTS_FIT)


@pytest.fixture(autouse=True)
def forget_too_many_programs(request):
    """A module that runs every method holds more than that: looked at after every twentieth of its tests."""
    yield
    module = request.module
    module.tests_run = getattr(module, "tests_run", 0) + 1
    if module.tests_run % 20 == 0:
        memory_maps.forget_programs(TWENTY_TESTS_FIT)


def policy_of(name: str, budget: int | float = 40) -> kvjax.Policy:
    """Every published method at a budget that makes it work for its living (`tests.method_cases`)."""
    return case(name).build(budget)


def prepared(lm: models.LanguageModel, pre: kvjax.Prefilled, name: str) -> kvjax.Prefilled:
    """Prompts with the evidence that a method wants of a second pass over them; as they are for the others."""
    return kvjax.second_pass(lm, pre, policy_of(name))


def counted_leaves(cache: kvjax.KVCache) -> list[jax.Array]:
    """The arrays that `KVCache.nbytes` and `host_nbytes` count."""
    apart = [getattr(cache, name) for name in BY_ROW]
    return [x for x in jax.tree.leaves(cache) if not any(x is y for y in apart)]


def everything() -> frozenset:
    """What the published methods read, and what the default prefill records."""
    needs = (policy_of(name).needs for name in kvjax.methods.names())
    return kvjax.evidence.union(kvjax.evidence.STANDARD, *needs)


@contextmanager
def compilations():
    """Names of the programs that JAX traces or compiles inside the block."""
    seen: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record):
            found = re.match(r"Finished (?:tracing \+ transforming|XLA compilation of) (.*?) (?:for pjit )?in", record.getMessage())
            if found:
                seen.append(found[1])

    handler, logger = Handler(), logging.getLogger("jax._src.dispatch")
    before = logger.level, jax.config.jax_log_compiles
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    jax.config.update("jax_log_compiles", True)
    try:
        yield seen
    finally:
        jax.config.update("jax_log_compiles", before[1])
        logger.setLevel(before[0])
        logger.propagate = True
        logger.removeHandler(handler)
