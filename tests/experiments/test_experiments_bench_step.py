"""`kvjax bench step`: random caches are what `compress` makes of a prompt, every cell is timed, and what cannot be is refused."""

import json
import tempfile

import jax
import numpy as np
import pytest

import kvjax
import models
from experiments.bench.model_shapes import decoder_of, one_layer, serving
from experiments.bench.random_cache import random_cache
from experiments.bench.step import cells, check
from experiments.policies import parse_policy
from tests.conftest import ids_of, toy_config

SNAPKV = "snapkv:window=8"


@pytest.fixture
def model(monkeypatch, tmp_path):
    """A folder with a config and no weights; a lock of its own, for other files' benchmarks run beside these."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(toy_config(num_hidden_layers=1)))
    return tmp_path


def step(cli, model, *words):
    return cli("bench", "step", "--model", model, "--rounds", 2, "--new", 3, "--dtype", "float32", *words)


def test_every_cell_is_timed_on_a_cache_of_the_size_of_a_real_one(cli, model):
    file, lm = model / "step.json", models.random(decoder_of(str(model)).config)
    words = ["--contexts", "300,40", "--policy", SNAPKV, "--budgets", "0.5,20", "--json", file]
    code, out, err = step(cli, model, *words)
    assert code == 0, err
    found, names = json.loads(file.read_text()), ("full cache", f"{SNAPKV} 0.5", f"{SNAPKV} 20")
    assert {"machine", "commit", "dtype", "shape", "versions"} <= set(found) and found["device"] == jax.devices()[0].device_kind
    assert list(found["ms_per_token"]) == [f"{n} tokens, {name}" for n in (300, 40) for name in names]
    assert all(x["count"] == 2 and 0 < x["min"] <= x["median"] for x in found["ms_per_token"].values())
    assert list(found["slots_per_head"].values()) == [300, 150, 20, 40, 20, 20]
    policies = kvjax.methods.full(), *(kvjax.methods.snapkv(budget=budget, window=8) for budget in (0.5, 20))
    pre = kvjax.prefill(lm, ids_of(300))
    sizes = [kvjax.compress(pre, policy).nbytes for policy in policies]
    assert list(found["allocated_bytes"].values())[:3] == sizes and sizes[0] > sizes[1] > sizes[2]
    assert found["weights_bytes"] == lm.nbytes - 4 * 128 * 64  # a step reads a row of the embedding, and all of the head
    name = f"300 tokens, full cache / {SNAPKV} 0.5"
    ms = [found["ms_per_token"][f"300 tokens, {cell}"]["median"] for cell in names]
    assert found["ratios"][name] == ms[0] / ms[1] and len(found["ratios"]) == len(found["bytes_ratios"]) == 4
    whole, half = (found["weights_bytes"] + size for size in sizes[:2])
    assert found["bytes_ratios"][name] == whole / half and f"ratio of bytes {name}: {whole / half:.2f}" in out


@pytest.mark.parametrize("policy", [kvjax.methods.full(), kvjax.methods.snapkv(budget=0.3, window=8)], ids=["full", "snapkv"])
def test_a_random_cache_is_a_real_one_but_for_its_numbers(lm, pre, policy):
    made, real = random_cache(lm.decoder, policy, 90, dtype="float32"), kvjax.compress(pre, policy)
    assert jax.tree.structure(made) == jax.tree.structure(real)
    forms = [[(x.shape, x.dtype, x.sharding) for x in jax.tree.leaves(cache)] for cache in (made, real)]
    assert forms[0] == forms[1] and made.nbytes == real.nbytes
    for name in ("start", "length", "capacity", "position", "steps"):
        np.testing.assert_array_equal(getattr(made, name), getattr(real, name))
    for head in made.kept(layer=2)[0]:
        assert len(np.unique(head)) == policy.mean_budget(90) and head[-1] == 89 and np.diff(head).max() <= -(-90 // len(head))
    for pool in (made.k, made.v):
        assert abs(float(pool.mean())) < 0.05 and abs(float(pool.std()) - 1) < 0.05
    assert not np.array_equal(made.k, made.v) and len(np.unique(made.k[:, 0])) > 0.99 * made.slots


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits_after_random_tokens_are_finite(lm, dtype):
    lm, policy = models.random(lm.config, dtype=dtype), kvjax.methods.snapkv(budget=0.3, window=8)
    cache = random_cache(lm.decoder, policy, 90, dtype=dtype)
    out = kvjax.decode(lm, cache, policy, max_new_tokens=8, stop=(), return_logits=True)
    assert cache.k.dtype == dtype and out.tokens.shape == (1, 8)
    assert np.isfinite(out.logits).all() and np.isfinite(out.cache.logits).all() and np.ptp(out.cache.logits) > 0.1


def test_positions_of_a_long_context(lm):
    decoder, policy = serving(one_layer(lm.decoder), 229_376), kvjax.methods.snapkv(budget=0.5)
    cache = random_cache(decoder, policy, 229_376, dtype="float32")
    for head in cache.kept(layer=0)[0]:
        np.testing.assert_array_equal(head, np.arange(1, 229_376, 2))


BAD = [
    (["--model", "no-such-shape"], "llama3-8b, llama3-70b"),
    (["--contexts", "0"], "--contexts: '0'"),
    (["--contexts", "1k"], "--contexts: '1k'"),
    (["--budgets", "half"], "budget 'half'"),
    (["--budgets", ","], "--budgets is empty"),
    (["--policy", "nope"], "unknown policy 'nope'"),
    (["--policy", "streaming_llm"], "its stage `when`, Every"),
    (["--policy", "adakv"], "its stage `allocate`, Adaptive"),
    (["--policy", "quest"], "its stage `retrieve`, TopPages"),
    (["--policy", "hcattention"], "its stage `encode`, Stored"),
    (["--policy", "snapkv,compresskv"], "compresskv 0.5 cannot be timed on random numbers: its stage `allocate`, LayerWeights"),
    (["--new", "0"], "--new"),
]


@pytest.mark.parametrize("words, reason", BAD)
def test_what_cannot_be_timed_is_one_line(cli, model, words, reason):
    code, _, err = step(cli, model, "--contexts", 64, *words)
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert code == 2 and len(errors) == 1 and reason in errors[0] and "Traceback" not in err


def test_more_than_the_device_holds_is_refused_before_it_is_made():
    decoder, found = decoder_of("llama3-8b"), cells([parse_policy("snapkv", 0.5)], [131_072, 229_376])
    how = dict(dtype="bfloat16", new=16)
    check(decoder, found, room=None, **how)
    check(decoder, found, room=78 * 10**9, **how)
    with pytest.raises(ValueError, match="229376 tokens, full cache.*71.5 GiB, JAX has 55.9.*MEM_FRACTION"):
        check(decoder, found, room=60 * 10**9, **how)
