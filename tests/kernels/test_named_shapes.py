"""Every implementation that runs anywhere, over every named shape, against float64; the other operations' files have theirs."""

import jax.numpy as jnp
import pytest

from kvjax.kernels.codebook_scores import codebook_scores
from kvjax.kernels.codebook_scores import shapes as coded
from kvjax.kernels.gather_attention import gather_attention
from kvjax.kernels.gather_attention import shapes as listed
from kvjax.kernels.prefill_attention import column_sums, prefill_attention
from kvjax.kernels.prefill_attention import shapes as prompts
from kvjax.kernels.ragged_attention import ragged_attention
from kvjax.kernels.ragged_attention import shapes as ragged
from kvjax.kernels.window_scores import shapes as windows
from kvjax.kernels.window_scores import window_scores

from . import named
from .test_ragged_attention import close

pytestmark = pytest.mark.slow
IMPLEMENTATIONS, DTYPES = ["xla", "reference"], ["float32", "bfloat16"]
#: Slots of all regions together that the oracle is given, at most.
MOST = 32768


def every(shapes, impls=IMPLEMENTATIONS):
    """Implementations by shapes by dtypes."""

    def decorate(test):
        for name, values in dict(name=shapes, dtype=DTYPES, impl=impls).items():
            test = pytest.mark.parametrize(name, values)(test)
        return test

    return decorate


@every(ragged.ALL, [*IMPLEMENTATIONS, "native"])
def test_ragged_attention(impl, dtype, name):
    operands, wanted = named.regions(ragged.ALL[name], dtype, MOST)
    for found, right in zip(ragged_attention(*operands, impl=impl), wanted, strict=True):
        close(found, right, dtype)


@every(listed.SHAPES, [*IMPLEMENTATIONS, "native"])
def test_gather_attention(impl, dtype, name):
    operands, wanted = named.lists(listed.SHAPES[name], dtype, MOST)
    for found, right in zip(gather_attention(*operands, impl=impl), wanted, strict=True):
        close(found, right, dtype)


@every(coded.SHAPES, [*IMPLEMENTATIONS, "native"])
def test_codebook_scores(impl, dtype, name):
    operands, cap, wanted = named.coded(coded.SHAPES[name], dtype, MOST)
    close(codebook_scores(*operands, cap=cap, impl=impl), wanted, dtype)


@every(windows.SHAPES)
def test_window_scores(impl, dtype, name):
    qk, where, wanted = named.windows(windows.SHAPES[name], dtype, 2048)
    close(window_scores(*qk, **where, impl=impl), wanted, dtype)


@every(prompts.SHAPES, [*IMPLEMENTATIONS, "native"])
def test_prefill_attention_and_column_sums(impl, dtype, name):
    (q, k, v), shape, length, (out, lse, sums) = named.prompts(prompts.SHAPES[name], dtype, 8)
    how = dict(offset=jnp.int32(shape.offset), window=shape.window, impl=impl)
    got, got_lse = prefill_attention(q, k, v, **how)
    close(got, out, dtype)
    close(got_lse, lse, dtype)
    close(column_sums(q, k, got_lse, length=jnp.asarray(length), **how), sums, dtype)
