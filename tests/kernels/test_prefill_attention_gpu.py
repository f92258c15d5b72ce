"""Prefill attention for an NVIDIA GPU that is not there: what XLA:GPU is asked for."""

import jax
import jax.numpy as jnp
import pytest

from . import deviceless

deviceless.require("jax_cuda13_plugin")

from jax._src.cudnn import fused_attention_stablehlo as fused  # noqa: E402

from kvjax.kernels.prefill_attention import cudnn, xla  # noqa: E402

CALL = "__cudnn$fmhaSoftmax"


def lowered(f, *shapes, dtype="bfloat16") -> str:
    """The program of f(*arrays, offset) for CUDA."""
    arrays = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    traced = jax.jit(f).trace(*arrays, jax.ShapeDtypeStruct((), jnp.int32))
    return traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.fixture
def with_cudnn(monkeypatch):
    """A cuDNN of version 9.10: the library itself is not among the extra's packages."""
    monkeypatch.setattr(fused, "check_cudnn_version", lambda: 91000)


@pytest.mark.parametrize("n, calls", [(96, 1), (512, 2)])
def test_a_prompt_is_one_call_and_a_chunk_two(with_cudnn, n, calls):
    run = lambda q, k, v, offset: cudnn.attention(q, k, v, offset, window=None)  # noqa: E731
    text = lowered(run, (2, 3, 4, 96, 64), (2, 3, n, 64), (2, 3, n, 64))
    assert text.count(f"stablehlo.custom_call @{CALL}") == calls
    assert "tensor<2x12x96xf32>" in text  # denominators stay in float32
    assert text.count('\\22mask_type\\22: \\22CAUSAL\\22') == 1 and text.count('\\22mask_type\\22: \\22PADDING\\22') == calls - 1


def test_elsewhere_than_on_a_cpu_heads_are_one_product():
    run = lambda q, k, v, offset: xla.attention(q, k, v, offset, window=None)  # noqa: E731
    text = lowered(run, (2, 3, 4, 96, 64), (2, 3, 512, 64), (2, 3, 512, 64), dtype="float32")
    assert "tensor<6x384x512xf32>" in text  # scores of a step: 6 rows and KV heads, 4 x 96 query rows, 512 keys


def test_the_compiled_program_reads_the_prompts_buffers_where_they_are(with_cudnn):
    run = jax.jit(lambda q, k, v, offset: cudnn.attention(q, k, v, offset, window=None))
    q, k = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((1, 8, 4, 128, 64), (1, 8, 4096, 64)))
    compiled = deviceless.compiled(run, q, k, k, jax.ShapeDtypeStruct((), jnp.int32))
    made = [line for line in compiled.as_text().splitlines() if "= bf16[1,8,4096,64]" in line and "parameter(" not in line]
    assert not made and compiled.as_text().count(f'custom_call_target="{CALL}"') == 2
