"""Block-wise prefill: the model's own layers with the mask in NumPy, and the prompts on which it is exact."""

import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
import models
from kvjax.prefill.attention import CausalAttention
from kvjax.prefill.star_attention import AnchoredAttention, StarAttention
from models import mistral
from tests.conftest import ids_of, toy_config
from tests.reference import hcattention as hc
from tests.reference.softmax import softmax


def slow_prefill(lm, ids, mask):
    """Keys, values and column sums [h g n] of every layer, and the logits of every token, with attention under a mask."""
    params, decoder = lm.params, lm.decoder
    x, at = decoder.embed(params, jnp.asarray([ids], jnp.int32)), jnp.arange(len(ids), dtype=jnp.int32)[None]
    seen = []

    def attend(heads):
        q, k, v = (np.asarray(x[0], np.float64) for x in (heads.q, heads.k, heads.v))
        a = softmax(np.where(mask, np.einsum("hgtd,hnd->hgtn", q, k) / np.sqrt(q.shape[-1]), -np.inf))
        seen.append((k, v, a.sum(2), q))
        return jnp.asarray(np.einsum("hgtn,hnd->hgtd", a, v)[None], jnp.float32), None

    for weights in params["layers"]:
        x, _ = decoder.layer(weights, x, at, attend)
    return seen, np.asarray(decoder.unembed(params, x)[0])


CASES = [
    (90, StarAttention(30)),
    (90, StarAttention(32, anchor=5)),
    (90, StarAttention(32, anchor=0)),
    (90, StarAttention(32, anchor=8, tail=20)),
    (70, StarAttention(20, tail=1)),
    (90, StarAttention(32, anchor=5, overlap=16)),
    (90, StarAttention(20, overlap=7, tail=10)),
    (90, StarAttention(16, anchor=0, overlap=16)),
]


@pytest.mark.parametrize("n, blocks", CASES)
def test_blocks_see_what_the_mask_allows(lm, n, blocks):
    ids = ids_of(n, n)
    (row,) = kvjax.prefill(lm, ids, attention=blocks, all_logits=True).rows
    body = n - blocks.tail
    mask = hc.allowed(n, blocks.size, blocks.first, blocks.tail, blocks.overlap)
    seen, logits = slow_prefill(lm, ids, mask)
    for layer, (k, v, sums, q) in enumerate(seen):
        np.testing.assert_allclose(row.k[layer][0, :, :n], k, atol=1e-5)
        np.testing.assert_allclose(row.v[layer][0, :, :n], v, atol=1e-5)
        evidence = row.evidence[layer]
        np.testing.assert_allclose(evidence.column_sums_by_head()[0, ..., :n], sums, atol=1e-4)
        assert not np.any(evidence.column_sums_by_head()[0, ..., n:]) and evidence.length.tolist() == [n]
        np.testing.assert_allclose(evidence.window_queries(8)[0], q[:, :, -8:], atol=1e-5)
    np.testing.assert_allclose(row.all_logits[:n], logits, atol=2e-5)
    np.testing.assert_allclose(row.logits, logits[-1], atol=2e-5)
    assert body > blocks.size and not np.any(row.all_logits[n:])


STARS = StarAttention(90), StarAttention(4096), StarAttention(16, tail=74), StarAttention(89, anchor=1, tail=1)


@pytest.mark.parametrize("blocks", STARS)
def test_a_prompt_of_one_block_is_exact_prefill(lm, prompt, pre, blocks):
    (row,), (want,) = kvjax.prefill(lm, prompt, attention=blocks).rows, pre.rows
    np.testing.assert_array_equal(row.logits, want.logits)
    np.testing.assert_array_equal(row.k[2], want.k[2])


def test_an_anchor_that_reaches_all_earlier_blocks_is_exact_attention(lm, prompt, pre):
    """Two blocks, the first of them the anchor: nothing is left out."""
    (row,), (want,) = kvjax.prefill(lm, prompt, attention=StarAttention(50)).rows, pre.rows
    np.testing.assert_allclose(row.logits, want.logits, atol=1e-5)
    np.testing.assert_allclose(row.k[2][0, :, :90], want.k[2][0, :, :90], atol=1e-5)
    sums, wanted = (x.evidence[2].column_sums() for x in (row, want))
    np.testing.assert_allclose(sums[..., :90], wanted[..., :90], atol=1e-4)


def test_policies_run_on_it(lm, prompt):
    policy = kvjax.methods.snapkv(budget=20, window=8)
    cache = kvjax.compress(kvjax.prefill(lm, [prompt, prompt[:40]], attention=StarAttention(32, 4), needs=policy), policy)
    assert cache.lengths.max() == 20 and kvjax.decode(lm, cache, policy, max_new_tokens=3, stop=()).tokens.shape == (2, 3)


def test_the_work_is_linear():
    """Runs of a long prompt: blocks behind one anchor, then the tail; the exact plan covers the prompt too."""
    n, runs = StarAttention(1000, anchor=10, tail=30).plan(10_000, None)
    assert n >= 10_000 and [run.offset for run in runs] == [*range(0, 9970, 1000), 9970]
    attentions = [run.attention for run in runs]
    assert attentions == [CausalAttention(), *[AnchoredAttention(10)] * 9, CausalAttention()]
    assert runs[-1].end == 10_000 and runs[0].end == 9970
    assert all(run.offset + run.width <= n for run in runs)
    n, runs = CausalAttention().plan(16_400, None)
    assert runs[-1].offset < 16_400 <= runs[-1].offset + runs[-1].width <= n


def test_refusals_name_the_way_out(lm, prompt):
    anchors = (dict(size=0), dict(size=4, anchor=5), dict(size=4, anchor=-1), dict(size=4, anchor=3, overlap=2))
    for bad in (*anchors, dict(size=4, tail=-1), dict(size=4, overlap=-1), dict(size=4, overlap=5)):
        with pytest.raises(ValueError, match="StarAttention wants"):
            StarAttention(**bad)
    with pytest.raises(ValueError, match="leave chunk=64 out"):
        kvjax.prefill(lm, prompt, attention=StarAttention(16), chunk=64)
    windowed = toy_config(model_type="mistral", sliding_window=8)
    with pytest.raises(ValueError, match="sliding window"):
        kvjax.prefill(models.random(mistral.config(windowed), seed=0), prompt, attention=StarAttention(16))
