"""PyramidInfer against its reference: the worked example, prompts whose tokens leave, decoding in groups."""

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import kvjax
from kvjax.allocate import CosineDecay
from kvjax.allocate.cosine_decay import contexts
from kvjax.prefill.star_attention import StarAttention
from kvjax.select.group_shares import cosine_ratios
from kvjax.view import Ranking
from models import mistral, random
from tests.conftest import ids_of, toy_config
from tests.methods.simulate import simulate
from tests.reference import pyramid_infer as reference
from tests.reference.attention import attention_rows

STEEP = dict(p=0.2, recent=0.1, least=8)


def test_e14():
    ratios = cosine_ratios(4, 0.9)
    assert_allclose(ratios, [1, 0.98536, 0.95, 0.91464], atol=5e-6)
    assert contexts(jnp.array([1000]), ratios, 64)[:, 0].tolist() == [1000, 985, 935, 855]


@pytest.mark.parametrize(("least", "want"), [(50, [100, 100, 100]), (49, [50, 50, 50]), (25, [50, 50, 50]), (24, [50, 25, 25])])
def test_a_context_is_not_cut_to_its_least(least, want):
    """Halves of 100: 50 is no more than a least of 50, so nothing goes; of 49 one cut is made, and 25 would be too few."""
    assert contexts(jnp.array([100]), jnp.full(3, 0.5), least)[:, 0].tolist() == want


def ranking(n: int, layers: int) -> Ranking:
    pos = jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32), (layers, 1, 2, n))
    return Ranking(scores=pos.astype(jnp.float32), protected=pos < 0, valid=pos >= 0, pos=pos)


@pytest.mark.parametrize(
    "n, interval, want", [(1251, 1, [1000, 985, 935, 855]), (1251, 2, [1000, 1000, 950, 950]), (40, 1, [31] * 4)]
)
def test_budgets_of_a_prompt(n, interval, want):
    budget = CosineDecay(interval=interval)(ranking(n, 4), jnp.array([n]))
    assert_array_equal(budget[:, 0], np.array(want)[:, None] + np.full(2, 1 + n // 5))


class Held:
    """One layer: keys and values of the positions held, and the reference's rule for decoded tokens."""

    def __init__(self, k, v, pos, rule):
        self.pos, self.rule = pos, rule
        self.k = {int(j): k[:, i] for i, j in enumerate(pos)}
        self.v = {int(j): v[:, i] for i, j in enumerate(pos)}

    def step(self, q, k, v, at):
        self.k[at], self.v[at] = k, v
        seen = [*self.rule.held.tolist(), at]
        rows = attention_rows(q[:, :, None], np.stack([self.k[j] for j in seen], 1))[:, :, 0]
        out = np.einsum("hgn,hnd->hgd", rows, np.stack([self.v[j] for j in seen], 1).astype(np.float64))
        self.rule.step(rows.reshape(-1, len(seen)), at)
        return out


def prompt_layers(lm, ids, *, p, recent, least, sinks=4, every=16):
    """(what each layer holds, logits after the prompt): dropped tokens are never computed by the layers that follow."""
    n, layers = len(ids), lm.decoder.layers
    m = 1 + int(recent * n + 1e-9)
    least, pos, held = min(least, n - m), np.arange(n), []
    x = lm.decoder.embed(lm.params, jnp.asarray([ids], jnp.int32))
    for layer, weights in enumerate(lm.params["layers"]):
        taken = []

        def attend(heads, taken=taken):
            q, k, v = (np.asarray(a[0]) for a in (heads.q, heads.k, heads.v))
            rows = attention_rows(q, k)
            taken.append((rows, k, v))
            return jnp.asarray(np.einsum("hgtn,hnd->hgtd", rows, v)[None], heads.q.dtype), None

        x, _ = lm.decoder.layer(weights, x, jnp.asarray(pos[None], jnp.int32), attend)
        rows, k, v = taken[0]
        stay = reference.layer_kept(
            rows[:, :, -m:].reshape(-1, m, len(pos)), reference.ratio(layer, layers, p), least, sinks=sinks
        )  # fmt: skip
        pos, x = pos[stay], x[:, stay]
        rule = reference.Decoding(pos, reference.ratio(layer, layers, 0.1), m, every)
        held.append(Held(k[:, stay], v[:, stay], pos, rule))
    return held, np.asarray(lm.decoder.unembed(lm.params, x))[0, -1]


@pytest.mark.parametrize("n, chunk", [(90, None), (200, 64), (9, None), (1, None)])
def test_dropped_tokens_leave(lm, n, chunk):
    policy, ids = kvjax.methods.pyramid_infer(**STEEP), ids_of(n, 3)
    held, logits = prompt_layers(lm, ids, **STEEP)
    cache = kvjax.prefill(lm, ids, streaming=policy, chunk=chunk)
    for layer, want in enumerate(held):
        for h, kept in enumerate(cache.kept(layer)[0]):
            assert_array_equal(kept, want.pos)
            start = int(cache.start[layer, 0, h])
            assert_allclose(cache.k[start : start + len(kept)], np.stack([want.k[j][h] for j in kept]), atol=2e-5)
    assert_allclose(cache.logits[0], logits, atol=5e-5)
    if n >= 90:
        sizes = [len(layer.pos) for layer in held]
        assert sizes[0] == n and sizes == sorted(sizes, reverse=True) and sizes[2] < n // 2
        afterwards = policy.replace(select=policy.select.replace(leave=False))
        cut = kvjax.compress(kvjax.prefill(lm, ids, needs=afterwards), afterwards)
        assert_array_equal(cut.lengths, cache.lengths)
        assert np.abs(cut.logits - cache.logits).max() > 1e-3


def test_64_tokens(lm):
    policy, ids = kvjax.methods.pyramid_infer(**STEEP, every=8), ids_of(90, 3)
    held, _ = prompt_layers(lm, ids, **STEEP, every=8)
    tokens = ids_of(64, 11)
    cache = kvjax.prefill(lm, ids, streaming=policy)
    fed = kvjax.extend(lm, cache, tokens, policy, block=1, return_logits=True)
    assert_allclose(fed.logits[0], simulate(lm, held, tokens, 90), atol=2e-4)
    for layer, want in enumerate(held):
        for kept in fed.cache.kept(layer)[0]:
            assert_array_equal(kept, want.rule.held)
    sizes = fed.cache.lengths[:, 0, 0] - cache.lengths[:, 0, 0]
    assert sizes[0] > sizes[2] and sizes[2] == 64 - 6 * (8 - int(0.9 * 8 * reference.ratio(2, 3, 0.1)))


def test_rows_are_as_they_are_alone(lm):
    policy, prompts = kvjax.methods.pyramid_infer(**STEEP), [ids_of(n, n) for n in (90, 30, 150)]
    together = kvjax.prefill(lm, prompts, streaming=policy, chunk=64)
    for r, ids in enumerate(prompts):
        alone = kvjax.prefill(lm, ids, streaming=policy, chunk=64)
        assert_array_equal(together.logits[r], alone.logits[0])
        for layer in range(3):
            for a, b in zip(together.kept(layer)[r], alone.kept(layer)[0], strict=True):
                assert_array_equal(a, b)


def test_generate_reads_layer_by_layer(lm, prompt):
    policy = kvjax.methods.pyramid_infer(**STEEP)
    out = kvjax.generate(lm, prompt, policy, max_new_tokens=6, stop=())
    want = kvjax.decode(lm, kvjax.prefill(lm, prompt, streaming=policy), policy, max_new_tokens=6, stop=())
    assert_array_equal(out.tokens, want.tokens)


def test_what_it_cannot_do_is_said_before(lm, pre, prompt):
    policy = kvjax.methods.pyramid_infer()
    with pytest.raises(ValueError, match="streaming=policy"):
        kvjax.compress(pre, policy)
    with pytest.raises(ValueError, match="CausalAttention"):
        kvjax.prefill(lm, prompt, streaming=policy, attention=StarAttention(32))
    turned = policy.replace(encode=kvjax.encode.Stored(positions=kvjax.encode.Rerotated()))
    with pytest.raises(ValueError, match="cannot be turned"):
        kvjax.prefill(lm, prompt, streaming=turned)
    windows = random(mistral.config(toy_config(model_type="mistral", sliding_window=16)))
    with pytest.raises(ValueError, match="sliding window"):
        kvjax.prefill(windows, prompt, streaming=policy)


def test_a_ratio_of_one_keeps_everything(lm, prompt):
    policy, full = kvjax.methods.pyramid_infer(p=1.0), kvjax.methods.full()
    got, want = kvjax.prefill(lm, prompt, streaming=policy), kvjax.prefill(lm, prompt, streaming=full)
    assert_array_equal(got.lengths, want.lengths)
    assert_array_equal(got.logits, want.logits)
