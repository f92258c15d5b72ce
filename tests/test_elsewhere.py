"""Methods where their programs are others: on a GPU, and on a CPU without a C++ compiler, beside this one's.

On a machine with a GPU: `JAX_PLATFORMS=cuda,cpu XLA_PYTHON_CLIENT_PREALLOCATE=false pytest -m gpu tests/test_elsewhere.py`.
"""

import jax
import pytest

import kvjax
from tests.answers import answer, elsewhere, same

#: One of each kind: what ranks, merges, reads parts and codes.
KINDS = ("adakv", "cam", "hcattention", "kivi", "quest", "roco", "shadowkv", "zipcache")


@pytest.mark.gpu
@pytest.mark.parametrize("name", kvjax.methods.names())
def test_a_gpu_keeps_and_says_what_a_cpu_does(name, tmp_path):
    assert jax.default_backend() == "gpu", "run with JAX_PLATFORMS=cuda,cpu on a machine with a GPU"
    same(answer(name), elsewhere(name, tmp_path / "cpu", JAX_PLATFORMS="cpu"), atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_xla_keeps_and_says_what_our_kernels_do(name, native, tmp_path):
    same(answer(name), elsewhere(name, tmp_path / "xla", JAX_PLATFORMS="cpu", CXX="/nonexistent"), atol=1e-3)
