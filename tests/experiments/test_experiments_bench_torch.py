"""PyTorch's attention beside ours: what is timed is attention over what each head holds, and a cell has both."""

import dataclasses
import subprocess

import numpy as np
import pytest

from experiments.bench import attention, beside
from kvjax.kernels.ragged_attention.shapes import SMOLLM2_BATCH, Shape
from tests.kernels.oracle import softmax_row

WAYS = {"torch sdpa", "torch sdpa, folded"}
SMALL = {
    "skewed": Shape(((40, 17),), g=3, t=1, d=16),
    "question": Shape(((9, 33), (1, 20)), g=2, t=5, d=32),
    "equal": Shape(((24,),), g=1, t=1, d=8),
}


@pytest.fixture(scope="module", autouse=True)
def torch():
    """An interpreter of the peers that has PyTorch."""
    python = beside.interpreter()
    if python is None or subprocess.run([python, "-c", "import torch"], capture_output=True).returncode:
        pytest.skip("no interpreter with PyTorch: $KVJAX_PEERS")


def ask(shapes, dtype="float32"):
    shapes = {name: dataclasses.asdict(shape) | {"layers": 2} for name, shape in shapes.items()}
    return beside.torch_attention(shapes, dtype=dtype, rounds=3, results=True)


def chained(q, k, v, lengths):
    """float64: each layer adds what its queries attend to, over the first slots of each head."""
    x = np.array(q)
    for keys, values in zip(np.array(k), np.array(v), strict=True):
        out = np.empty(x.shape)
        for row, head, group, i in np.ndindex(x.shape[:-1]):
            held = slice(lengths[row][head])
            out[row, head, group, i], _, _ = softmax_row(x[row, head, group, i], keys[row, head, held], values[row, head, held])
        x = x + out
    return x


@pytest.mark.parametrize(("dtype", "atol"), [("float32", 5e-6), ("bfloat16", 5e-2)])
def test_what_is_timed_is_attention_over_what_each_head_holds(dtype, atol):
    found = ask(SMALL, dtype)
    assert found["versions"]["torch"] and set(found["cells"]) == set(SMALL)
    for name, cell in found["cells"].items():
        assert WAYS <= set(cell["seconds"]) and all(len(values) == 3 for values in cell["seconds"].values())
        q, k, v = (cell["results"].pop(part) for part in "qkv")
        expected = chained(q, k, v, SMALL[name].lengths)
        assert set(cell["results"]) == set(cell["seconds"])
        for result in cell["results"].values():
            np.testing.assert_allclose(result, expected, atol=atol)


def test_a_script_that_fails_is_no_peers_and_why():
    missing = ask(SMALL, "float33")["missing"]
    assert "no peers measured: torch_attention.py failed: AttributeError" in missing and "float33" in missing


def test_a_cell_has_both_and_their_ratio():
    result = attention.attention({"batch": SMOLLM2_BATCH}, "float32", 2)
    cell = result["cells"]["batch"]
    assert {"ragged", "sum", "dense"} | WAYS <= set(cell["seconds"]) and result["peers"]["torch"]
    for name in WAYS:
        assert cell["seconds"][name]["count"] == 2
        assert cell[f"{name} / ragged"] == cell["seconds"][name]["median"] / cell["seconds"]["ragged"]["median"]
