"""Residual streams: what is rebuilt is the prefill, to the bit; what is projected, up to rounding; the published bytes."""

import jax
import numpy as np
import pytest

import kvjax
from kvjax.prefill.residuals import projected, rebuilt, residuals, stream_nbytes
from tests.conftest import ids_of


@pytest.mark.parametrize("stride, chunk", [(1, None), (2, 64), (None, None)])
def test_what_is_rebuilt_is_the_prefill_to_the_bit(lm, stride, chunk):
    prompts, policy = [ids_of(90), ids_of(1, 1)], kvjax.methods.h2o(budget=20)
    want = kvjax.prefill(lm, prompts, needs=policy, chunk=chunk)
    got = rebuilt(lm, residuals(lm, prompts, stride=stride, chunk=chunk), needs=policy)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_was_evicted_comes_back(lm):
    """A cut cache goes on from the full one again, token for token."""
    full, cut, ids = kvjax.methods.full(), kvjax.methods.knorm(budget=8), ids_of(40)
    pre, kept = kvjax.prefill(lm, ids), residuals(lm, ids, stride=1)
    want = kvjax.decode(lm, kvjax.compress(pre, full), full, max_new_tokens=6, stop=())
    assert (kvjax.compress(pre, cut).lengths == 8).all()
    got = kvjax.decode(lm, kvjax.compress(rebuilt(lm, kept), full), full, max_new_tokens=6, stop=())
    np.testing.assert_array_equal(got.tokens, want.tokens)


@pytest.mark.parametrize("chunk", [None, 64])
def test_two_projections_make_a_layers_keys_and_values(lm, chunk):
    ids = ids_of(90)
    pre, kept = kvjax.prefill(lm, ids, chunk=chunk), residuals(lm, ids, chunk=chunk)
    for layer in range(3):
        for got, want in zip(projected(lm, kept, 0, layer), (pre.rows[0].k[layer], pre.rows[0].v[layer]), strict=True):
            np.testing.assert_allclose(got, want[:, :, :90], atol=1e-5)


def test_one_stream_does_not_make_the_others(lm):
    """With the last token changed, the stream that enters layer 1 at the token before is the same; with the first, it is not."""
    base, last, first = ids_of(20), [*ids_of(20)[:-1], 7], [7, *ids_of(20)[1:]]
    streams = [np.asarray(residuals(lm, ids).x[0][1][0])[0, 18] for ids in (base, last, first)]
    np.testing.assert_allclose(streams[0], streams[1], atol=1e-6)
    assert np.abs(streams[0] - streams[2]).max() > 1e-3
    np.testing.assert_array_equal(*(np.asarray(residuals(lm, ids).x[0][0][0])[0, 18] for ids in (base, first)))


MODELS = {
    "gemma-3-4b": (34, 4, 256, 2560, (136, 5, 170)),
    "llama-3-8b": (32, 8, 128, 4096, (128, 8, 256)),
    "qwen2.5-7b": (28, 4, 128, 3584, (56, 7, 196)),
    "llama-2-7b": (32, 32, 128, 4096, (512, 8, 256)),
}


@pytest.mark.parametrize("model", MODELS)
def test_published_kibibytes_a_token(model):
    layers, heads, d, width, (kv, one, every) = MODELS[model]
    assert 2 * layers * heads * d * 2 == kv * 1024
    assert stream_nbytes(layers, width, layers) == one * 1024 and stream_nbytes(layers, width, 1) == every * 1024


def test_bytes_are_those_of_live_buffers(lm):
    for stride, streams in ((1, 3), (2, 2), (None, 0)):
        kept = residuals(lm, ids_of(64), stride=stride)
        assert kept.nbytes == streams * 64 * 64 * 4 + 64 * 4


def test_what_was_not_kept_is_refused(lm):
    with pytest.raises(ValueError, match="stream of layer 1 was not kept"):
        projected(lm, residuals(lm, ids_of(5), stride=2), 0, 1)
    with pytest.raises(ValueError, match="stride=None"):
        residuals(lm, ids_of(5), stride=0)
