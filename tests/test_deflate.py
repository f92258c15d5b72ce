"""Saved conversations through DEFLATE: the same to the bit, smaller, and refused where they are not what the header says."""

import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.encode import OnHost, Stored
from kvjax.files.deflate import deflated, inflated
from tests.conftest import policy_of
from tests.test_saved import rewritten, same
from tests.test_saved_cache import header_in

SHAPES = [(), (0,), (3, 0), (7,), (5, 3), (2, 3, 4)]
DTYPES = ["bool", "uint8", "int32", "float16", "bfloat16", "float32"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_of_any_shape_come_back_to_the_bit(dtype):
    for shape in SHAPES:
        x = jnp.asarray(np.random.default_rng(0).normal(size=shape) * 9).astype(dtype)
        again = inflated(deflated(x), list(shape), dtype)
        assert (again.dtype, again.shape, np.asarray(again).tobytes()) == (x.dtype, x.shape, np.asarray(x).tobytes())


def test_planes_of_bytes():
    """What is alike from row to row is found: rows of noise that all are one, and counting."""
    noise = np.random.default_rng(0).integers(0, 256, 64, np.uint8)
    assert deflated(jnp.asarray(np.tile(noise, (500, 1)))).size < 600
    assert deflated(jnp.arange(4000, dtype=jnp.int32)).size < 600


CASES = {
    "kvtc": lambda: policy_of("kvtc"),
    "values on the host": lambda: policy_of("snapkv").replace(encode=Stored(placement=OnHost())),
    "parts": lambda: policy_of("mikv"),
}


@pytest.mark.parametrize("name", CASES)
def test_conversations_come_back_smaller_and_to_the_bit(lm, pre, tmp_path, name):
    policy = CASES[name]()
    cache = kvjax.compress(pre, policy)
    plain = kvjax.save_cache(cache, tmp_path / "plain", lm, policy)
    small = kvjax.save_cache(cache, tmp_path / "small", lm, policy, deflate=True)
    same(cache, kvjax.load_cache(small, lm, policy))
    assert small.stat().st_size < plain.stat().st_size


def test_what_the_header_does_not_describe_is_refused(lm, pre, tmp_path):
    policy = policy_of("snapkv")
    file = kvjax.save_cache(kvjax.compress(pre, policy), tmp_path / "small", lm, policy, deflate=True)
    right = header_in(file)["deflated"]
    name = next(iter(right))
    for wrong in ({**right, name: [[3, 5], "float32"]}, {k: v for k, v in right.items() if k != name}):
        with pytest.raises(ValueError, match="unlike its header"):
            kvjax.load_cache(rewritten(file, deflated=wrong), lm, policy)
    header = header_in(kvjax.save_cache(kvjax.compress(pre, policy), tmp_path / "plain", lm, policy))
    assert "deflated" not in header
