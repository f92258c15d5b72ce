"""Every method on a GPU beside itself on a CPU: `JAX_PLATFORMS=cuda XLA_PYTHON_CLIENT_PREALLOCATE=false pytest -m gpu`.

`python -m tests.test_on_gpu NAME FILE` is the process of the CPU.
"""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import kvjax
from tests.conftest import ids_of, policy_of, toy_model

#: Lengths of the prompts, of one batch; tokens decoded after them.
LENGTHS, NEW = (90, 41), 12


def answer(name: str) -> dict:
    """What a method keeps of the prompts, and what is decoded; products of float32 numbers are products of float32 numbers."""
    with jax.default_matmul_precision("highest"):
        lm, policy = toy_model(), policy_of(name)
        pre = kvjax.prefill(lm, [ids_of(n, seed=n) for n in LENGTHS], needs=policy, attention=policy.attention)
        cache = kvjax.compress(kvjax.second_pass(lm, pre, policy), policy)
        kept = [cache.kept(layer) for layer in range(lm.decoder.layers)]
        out = kvjax.decode(lm, cache, policy, max_new_tokens=NEW, stop=(), return_logits=True)
    return {"kept": kept, "tokens": np.asarray(out.tokens), "logits": np.asarray(out.logits)}


@pytest.mark.gpu
@pytest.mark.parametrize("name", kvjax.methods.names())
def test_keeps_and_says_what_it_does_on_a_cpu(name, tmp_path):
    assert jax.default_backend() == "gpu", "run with JAX_PLATFORMS=cuda on a machine with a GPU"
    file = tmp_path / "cpu"
    subprocess.run([sys.executable, "-m", __name__, name, file], env=os.environ | {"JAX_PLATFORMS": "cpu"}, check=True)
    here, there = answer(name), pickle.loads(file.read_bytes())
    for mine, right in zip(here["kept"], there["kept"], strict=True):
        jax.tree.map(np.testing.assert_array_equal, mine, right)
    np.testing.assert_array_equal(here["tokens"], there["tokens"])
    np.testing.assert_allclose(here["logits"], there["logits"], atol=1e-3)


if __name__ == "__main__":
    Path(sys.argv[2]).write_bytes(pickle.dumps(answer(sys.argv[1])))
