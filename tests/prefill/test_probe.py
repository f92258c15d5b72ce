"""A second pass against the model run densely over prompt and probe in one go."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import kvjax
from kvjax.evidence import AttentionStatistics, ColumnSums, HiddenStates, Probed, WindowQueries
from kvjax.evidence.reduce import Below, HitGaps, Max, Sum
from models import llama, mistral, random
from tests.conftest import compilations, ids_of, toy_config
from tests.reference.softmax import softmax

HIGHEST = AttentionStatistics(Max())
N, T = 90, 37


def rows_of(lm, ids, prompt, *, span=None, sinks=0):
    """Attention rows [h, g, t, n] of the tokens behind the first `prompt`, by layer, in float64: the whole text run densely."""
    x, at, found = lm.decoder.embed(lm.params, jnp.asarray([ids])), jnp.arange(len(ids))[None], []
    j = np.arange(len(ids))
    start, stop = span or (0, prompt)
    told = (j < sinks) | ((start <= j) & (j < stop)) | (j >= prompt)
    for weights, window in zip(lm.params["layers"], lm.decoder.windows, strict=True):

        def attend(inputs, window=window):
            q, k, v = (np.asarray(y, np.float64)[0] for y in (inputs.q, inputs.k, inputs.v))
            z = np.einsum("hgtd,hnd->hgtn", q, k) / np.sqrt(q.shape[-1])
            seen = (j <= j[:, None]) & (True if window is None else j > j[:, None] - window)
            p = softmax(np.where(seen, z, -np.inf))
            late = seen[prompt:] & told
            found.append(softmax(np.where(late, z[:, :, prompt:], -np.inf))[..., :prompt] * ((start <= j) & (j < stop))[:prompt])
            return jnp.asarray(np.einsum("hgtn,hnd->hgtd", p, v)[None], jnp.float32), None

        x, _ = lm.decoder.layer(weights, x, at, attend)
    return found


def recorded(pre, need, row=0):
    return [e.of(Probed(need)) for e in pre.rows[row].evidence]


@pytest.fixture(scope="module")
def bare(lm, prompt):
    return kvjax.prefill(lm, prompt, needs={ColumnSums()})


@pytest.mark.parametrize("span, sinks", [(None, 0), ((20, 50), 4), ((2, 90), 4), ((80, 90), 0)])
def test_attention_of_a_probe(lm, bare, prompt, span, sinks):
    asked, needs = ids_of(T, 7), {ColumnSums(), HIGHEST, AttentionStatistics(Sum())}
    pre = kvjax.probe(lm, bare, asked, needs, span=span, sinks=sinks)
    want = rows_of(lm, prompt + asked, N, span=span, sinks=sinks)
    found = (recorded(pre, need) for need in (ColumnSums(), AttentionStatistics(Sum()), HIGHEST))
    for sums, added, best, rows in zip(*found, want, strict=True):
        assert_allclose(sums[0, ..., :N], rows.sum(2), atol=2e-5)
        assert_allclose(added[0, ..., :N], rows.sum(2), atol=2e-5)
        assert_allclose(best[0, ..., :N], rows.max(2), atol=1e-5)
        assert (np.asarray(sums)[..., N:] == 0).all() and 0.1 < rows.sum(-1).mean() < 0.999


def test_counts_and_hits_count_what_a_probe_sees(lm, bare, prompt):
    asked, below, gaps = ids_of(T, 7), AttentionStatistics(Below()), AttentionStatistics(HitGaps(0.05))
    pre = kvjax.probe(lm, bare, asked, {below, gaps})
    for got, hits, rows in zip(recorded(pre, below), recorded(pre, gaps), rows_of(lm, prompt + asked, N), strict=True):
        even = 1 / (N + 1 + np.arange(T))[:, None]
        assert_array_equal(got[0, ..., :N], (rows < even).sum(2))
        hit = rows >= 0.05
        last = np.where(hit.any(2), N + T - 1 - hit[:, :, ::-1].argmax(2), -1)
        assert_array_equal(hits.last[0, ..., :N], last)


def test_a_window_bounds_what_a_probe_sees():
    config = toy_config(model_type="mistral", sliding_window=24)
    lm, prompt, asked = random(mistral.config(config), seed=2), ids_of(60, 1), ids_of(12, 2)
    assert set(lm.decoder.windows) == {24}
    pre = kvjax.probe(lm, kvjax.prefill(lm, prompt, needs=set()), asked, {ColumnSums()})
    for got, rows in zip(recorded(pre, ColumnSums()), rows_of(lm, prompt + asked, 60), strict=True):
        assert_allclose(got[0, ..., :60], rows.sum(2), atol=2e-5)
        assert (np.asarray(got)[..., :36] == 0).all()


def test_last_queries_of_a_probe_are_those_of_the_text_in_one(lm, bare, prompt):
    asked = ids_of(T, 7)
    pre = kvjax.probe(lm, bare, asked, {WindowQueries(16)})
    whole = kvjax.prefill(lm, prompt + asked, needs={WindowQueries(16)})
    for got, evidence in zip(recorded(pre, WindowQueries(16)), whole.rows[0].evidence, strict=True):
        assert_allclose(got, evidence.window_queries(16), atol=3e-5)


def test_nothing_of_the_prompt_changes(lm, prompt):
    before = kvjax.prefill(lm, prompt)
    copy = [np.asarray(x) for x in jax.tree.leaves(before)]
    after = kvjax.probe(lm, before, ids_of(T, 7), {ColumnSums()})
    for x, y in zip(copy, jax.tree.leaves(before), strict=True):
        assert_array_equal(x, y)
    one, two = before.rows[0], after.rows[0]
    assert one.k is two.k and one.v is two.v and one.logits is two.logits and after.lengths == [N]
    for a, b in zip(one.evidence, two.evidence, strict=True):
        assert (a.length == b.length).all() and all(b.data[key] is a.data[key] for key in a.data)
        assert set(b.data) == {*a.data, "probe_column_sums"}
        assert not np.allclose(b.of(ColumnSums()), b.of(Probed(ColumnSums())))
    for name in ("snapkv", "h2o"):
        policy = getattr(kvjax.methods, name)(budget=40)
        for layer in range(3):
            assert_array_equal(kvjax.compress(before, policy).kept(layer), kvjax.compress(after, policy).kept(layer))


def test_a_row_is_probed_as_alone(lm):
    prompts, asked = [ids_of(n, n) for n in (90, 3, 130)], [ids_of(9, 1), ids_of(70, 2), ids_of(33, 3)]
    needs = {ColumnSums(), HIGHEST}
    both = kvjax.probe(lm, kvjax.prefill(lm, prompts, needs=set()), asked, needs)
    for r, (ids, more) in enumerate(zip(prompts, asked, strict=True)):
        alone = kvjax.probe(lm, kvjax.prefill(lm, ids, needs=set()), more, needs)
        for need in needs:
            for a, b in zip(recorded(both, need, r), recorded(alone, need), strict=True):
                assert_array_equal(a, b)


def test_a_probe_in_chunks_is_a_probe(lm, bare):
    asked, needs = ids_of(150, 7), {ColumnSums(), HIGHEST}
    whole, parts = kvjax.probe(lm, bare, asked, needs), kvjax.probe(lm, bare, asked, needs, chunk=64)
    for need in needs:
        for a, b in zip(recorded(whole, need), recorded(parts, need), strict=True):
            assert_allclose(a, b, atol=3e-5)


def test_probes_fold_on_and_do_not_see_each_other(lm, bare):
    one, two = ids_of(T, 7), ids_of(20, 8)
    both = kvjax.probe(lm, kvjax.probe(lm, bare, one, {HIGHEST}), two, {HIGHEST})
    first, second = (recorded(kvjax.probe(lm, bare, ids, {HIGHEST}), HIGHEST) for ids in (one, two))
    for a, b, c in zip(recorded(both, HIGHEST), first, second, strict=True):
        assert_array_equal(a, np.maximum(b, c))
    named = kvjax.probe(lm, both, two, {Probed(HIGHEST, name="other")})
    assert_array_equal(named.rows[0].evidence[1].of(Probed(HIGHEST, name="other")), second[1])


def test_similar_probes_share_programs(lm):
    kvjax.probe(lm, kvjax.prefill(lm, ids_of(130, 1)), ids_of(33), {HIGHEST}, span=(10, 60), sinks=4)
    with compilations() as seen:
        kvjax.probe(lm, kvjax.prefill(lm, [ids_of(131, 2), ids_of(143, 2)]), ids_of(64, 2), {HIGHEST}, span=(70, 121), sinks=4)
    assert seen == []


def test_what_cannot_be_probed_is_refused_before_tracing(lm, bare):
    asked, needs = ids_of(9), {ColumnSums()}
    other = random(llama.config(toy_config(num_hidden_layers=2)))
    told = kvjax.probe(lm, bare, asked, {WindowQueries(4)})
    cases = [
        (TypeError, "kvjax.prefill", lambda: kvjax.probe(lm, [bare], asked, needs)),
        (ValueError, "another model", lambda: kvjax.probe(other, bare, asked, needs)),
        (ValueError, "is empty", lambda: kvjax.probe(lm, bare, [], needs)),
        (ValueError, "outside the vocabulary", lambda: kvjax.probe(lm, bare, [1, 128], needs)),
        (ValueError, "context of 1024", lambda: kvjax.probe(lm, bare, ids_of(1000), needs)),
        (ValueError, "2 probes for 1 prompts", lambda: kvjax.probe(lm, bare, [asked, asked], needs)),
        (TypeError, "needs of a probe", lambda: kvjax.probe(lm, bare, asked, "column_sums")),
        (TypeError, "needs of a probe", lambda: kvjax.probe(lm, bare, asked, {"column_sums"})),
        (ValueError, "records nothing", lambda: kvjax.probe(lm, bare, asked, set())),
        (ValueError, "one entry a token", lambda: kvjax.probe(lm, bare, asked, {HiddenStates()})),
        (ValueError, "name of its own", lambda: kvjax.probe(lm, told, asked, {WindowQueries(8)})),
        (ValueError, "no part of prompt 0", lambda: kvjax.probe(lm, bare, asked, needs, span=(50, 91))),
        (ValueError, "first keys", lambda: kvjax.probe(lm, bare, asked, needs, sinks=-1)),
        (ValueError, "multiple of 64", lambda: kvjax.probe(lm, bare, asked, needs, chunk=100)),
    ]
    with compilations() as seen:
        for kind, message, call in cases:
            with pytest.raises(kind, match=message):
                call()
    assert seen == []
