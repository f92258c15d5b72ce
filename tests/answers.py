"""What a method makes of two prompts of the toy model, here or in a process whose environment is another.

`python -m tests.answers NAME FILE` is that process.
"""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np

import kvjax
from tests.conftest import ids_of, policy_of, prepared, toy_model

#: Lengths of the prompts, of one batch; tokens decoded after them.
LENGTHS, NEW = (90, 41), 12


def answer(name: str) -> dict:
    """The slots kept by layer, tokens, and their logits; products of float32 numbers are products of float32 numbers."""
    with jax.default_matmul_precision("highest"):
        lm, policy = toy_model(), policy_of(name)
        pre = kvjax.prefill(lm, [ids_of(n, seed=n) for n in LENGTHS], needs=policy)
        cache = kvjax.compress(prepared(lm, pre, name), policy)
        kept = [cache.kept(layer) for layer in range(lm.decoder.layers)]
        out = kvjax.decode(lm, cache, policy, max_new_tokens=NEW, stop=(), return_logits=True)
    return {"kept": kept, "tokens": np.asarray(out.tokens), "logits": np.asarray(out.logits)}


def elsewhere(name: str, file: Path, **environment: str) -> dict:
    """`answer` of a process with these variables."""
    subprocess.run([sys.executable, "-m", __name__, name, file], env=os.environ | environment, check=True)
    return pickle.loads(file.read_bytes())


def same(here: dict, there: dict, atol: float) -> None:
    """The same slots and tokens, and logits up to `atol`."""
    for mine, right in zip(here["kept"], there["kept"], strict=True):
        jax.tree.map(np.testing.assert_array_equal, mine, right)
    np.testing.assert_array_equal(here["tokens"], there["tokens"])
    np.testing.assert_allclose(here["logits"], there["logits"], atol=atol)


if __name__ == "__main__":
    Path(sys.argv[2]).write_bytes(pickle.dumps(answer(sys.argv[1])))
