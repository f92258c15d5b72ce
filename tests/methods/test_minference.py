"""MInference against its transcription, the authors' indices and exact attention: alone, in chunks, before other policies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
import models
from kvjax.artefacts import artefact
from kvjax.calibrate.minference import CANDIDATES, Searched, as_released, assign, best, report, scaled, searched
from kvjax.prefill import AShape, BlockSparse, MInference, VerticalSlash, sparse_index
from kvjax.prefill.patterns import as_table, of_table, sizes_of
from kvjax.prefill.sparse_attention import computed_tiles, sparse_attention
from models import mistral
from tests.conftest import compilations, ids_of, policy_of, toy_config
from tests.reference import golden_methods
from tests.reference import minference as slow

SIX = (VerticalSlash(40, 60), AShape(5, 70), BlockSparse(2), VerticalSlash(0, 0), AShape(0, 1), BlockSparse(9))
FIRST = jnp.int32(0)
MIXED = MInference(of_table(as_table(((AShape(4, 9), VerticalSlash(30, 50), BlockSparse(1), AShape(0, 1)),) * 3)))


def drawn(n=200, seed=0):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    return draw(1, 2, 3, n, 16), draw(1, 2, n, 16), draw(1, 2, n, 16)


def index_of(patterns, q, k, count, kind=MInference):
    """What the heads of a layer see, from the first token on."""
    attention = kind((patterns,))
    sizes = jnp.asarray(sizes_of(patterns).reshape(*q.shape[1:3], 5))
    return sparse_index.sparse_index(sizes, q, k, FIRST, count, most=attention.most, nearest=attention.nearest)


def mask_of(pattern, q, k):
    """The transcription's mask of one head."""
    n = len(k)
    if isinstance(pattern, AShape):
        return slow.a_shape(n, pattern.first, pattern.recent)
    if isinstance(pattern, BlockSparse):
        return slow.block_sparse(q, k, pattern.blocks, 64)
    v, s = max(pattern.vertical, 30), max(pattern.slash, 50)
    return slow.vertical_slash(slow.last_rows(q, k, min(64, n)), v, s, (30, 100))[2]


def test_worked_example():
    rows = jnp.array([[0.1, 0, 0.3, 0.1, 0.5, 0], [0.2, 0.1, 0, 0.3, 0.1, 0.3]])[None, None, None]
    by_column, by_offset = sparse_index.vertical(rows), sparse_index.slash(rows, jnp.array([[4, 5]]))
    np.testing.assert_allclose(by_column[0, 0, 0], [0.3, 0.1, 0.3, 0.4, 0.6, 0.3], atol=1e-6)
    np.testing.assert_allclose(by_offset[0, 0, 0], [0.8, 0.2, 0.6, 0, 0.2, 0.2], atol=1e-6)
    two = jnp.full((1, 1, 1), 2)
    columns, offsets = (sparse_index.highest(x, two, forced=1) for x in (by_column, by_offset))
    index = sparse_index.SparseIndex(columns, offsets, jnp.zeros((1, 1, 1, 1, 1), bool), most=2)
    mask = np.asarray(sparse_index.sees(index, jnp.arange(6), FIRST))[0, 0, 0]
    assert [np.flatnonzero(row).tolist() for row in mask] == [[0], [0, 1], [0, 2], [0, 1, 3], [0, 2, 4], [0, 3, 4, 5]]


def test_authors_indices():
    g = golden_methods.load("minference")
    q = jnp.zeros((1, 1, 1, 256, 16), jnp.float32).at[..., 192:, :].set(g["query_last64"][:, :, None])
    index = index_of((VerticalSlash(60, 130),), q, jnp.asarray(g["key"], jnp.float32), jnp.array([256]))
    np.testing.assert_array_equal(np.flatnonzero(index.columns), g["vertical_idx_sorted"])
    np.testing.assert_array_equal(np.flatnonzero(index.offsets), g["slash_offsets_sorted"])


@jax.jit
def computed(q, k, v, count):
    """Six heads' outputs and masks."""
    index = index_of(SIX, q, k, count)
    out, _ = sparse_attention(q, k, v, index, offset=FIRST)
    return out, sparse_index.sees(index, jnp.arange(q.shape[3]), FIRST)


@pytest.mark.parametrize("n", [1, 50, 64, 200])
def test_masks_and_outputs_are_the_transcriptions(n):
    q, k, v = drawn(n)
    out, mask = map(np.asarray, computed(q, k, v, np.array([n], np.int32)))
    for h in range(2):
        for g in range(3):
            own = q[0, h, g].astype(np.float64), k[0, h].astype(np.float64)
            want = mask_of(SIX[h * 3 + g], *own)
            np.testing.assert_array_equal(mask[0, h, g], want)
            np.testing.assert_allclose(out[0, h, g], slow.attention(*own, v[0, h], want), atol=2e-6)


def test_tiles_counted_are_those_with_a_chosen_pair():
    q, k, _ = drawn(320)
    index = jax.jit(lambda q, k: index_of((AShape(0, 1),) * 6, q, k, jnp.array([320])))(q, k)
    count = jax.jit(lambda index, n: computed_tiles(index, FIRST, n))
    tiles, under = count(index, jnp.array([320]))
    assert (np.asarray(tiles) == 5).all() and (np.asarray(under) == 15).all()
    tiles, _ = count(index.replace(columns=index.columns.at[..., 7].set(True)), jnp.array([300]))
    assert (np.asarray(tiles) == 1 + 4 * 2).all()  # the column's tile is the diagonal's in the first block of queries alone


@pytest.mark.parametrize("attention", [MInference(), MInference(AShape(0, 1000)), MInference(BlockSparse(100))])
def test_everything_chosen_is_exact(lm, pre, prompt, attention):
    got = kvjax.prefill(lm, prompt, needs=kvjax.evidence.STANDARD, attention=attention).rows[0]
    want = pre.rows[0]
    for a, b in zip(got.k + got.v, want.k + want.v, strict=True):
        np.testing.assert_allclose(a[:, :, :90], b[:, :, :90], atol=1e-5)
    np.testing.assert_allclose(got.logits, want.logits, atol=1e-5)
    for a, b in zip(got.evidence, want.evidence, strict=True):
        np.testing.assert_allclose(a.column_sums()[..., :90], b.column_sums()[..., :90], atol=1e-4)


def test_a_prefill_is_the_dense_masked_model(lm):
    """Column sums and logits of the first layers' sparse rows, written out in NumPy from the first layer's inputs."""
    ids, seen = ids_of(150, 3), {}

    def attend(inputs):
        q, k, v = (np.asarray(x)[0].astype(np.float64) for x in (inputs.q, inputs.k, inputs.v))
        patterns = np.array(MIXED.patterns[0], object).reshape(2, 2)
        rows = np.zeros((2, 2, 150, 150))
        for h in range(2):
            for g in range(2):
                z = q[h, g] @ k[h].T / 4
                rows[h, g] = slow.softmax(np.where(mask_of(patterns[h, g], q[h, g], k[h]), z, -np.inf))
        seen.setdefault("sums", rows.sum(2))
        return jnp.asarray(np.einsum("hgtn,hnd->hgtd", rows, v)[None], jnp.float32), None

    x, at = lm.decoder.embed(lm.params, jnp.asarray([ids])), jnp.arange(150)[None]
    for weights in lm.params["layers"]:
        x, _ = lm.decoder.layer(weights, x, at, attend)
    row = kvjax.prefill(lm, ids, needs=kvjax.evidence.STANDARD, attention=MIXED).rows[0]
    np.testing.assert_allclose(row.logits, lm.decoder.unembed(lm.params, x)[0, -1], atol=1e-4)
    np.testing.assert_allclose(row.evidence[0].column_sums_by_head()[0, ..., :150], seen["sums"], atol=1e-4)


@pytest.mark.parametrize("length, chunk, widths", [(90, None, [96]), (3000, None, [3072]), (3000, 1024, [1024] * 3)])
def test_a_prompt_is_run_whole_unless_a_chunk_is_asked_for(length, chunk, widths):
    n, parts = MInference().plan(length, chunk)
    assert n == sum(widths) and [part.width for part in parts] == widths
    assert all(part.attention == MInference() for part in parts)


def test_in_chunks_each_chunk_votes_for_itself(lm):
    ids = ids_of(150, 4)
    attention = MInference(AShape(8, 40))  # needs no votes: chunks change nothing
    whole, parts = (kvjax.prefill(lm, ids, attention=attention, chunk=chunk) for chunk in (None, 64))
    np.testing.assert_allclose(whole.rows[0].logits, parts.rows[0].logits, atol=1e-5)
    voted = kvjax.prefill(lm, ids, attention=MInference(VerticalSlash(0, 0)), chunk=64)
    assert jnp.isfinite(voted.rows[0].logits).all()


@pytest.mark.parametrize("name", ["snapkv", "h2o", "kivi"])
def test_any_policy_can_follow(lm, name):
    policy = policy_of(name)
    pre = kvjax.prefill(lm, ids_of(90), needs=policy, attention=MIXED)
    out = kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=64, stop=(), return_logits=True)
    assert jnp.isfinite(out.logits).all()
    own = kvjax.prefill(lm, ids_of(90), needs=policy.replace(attention=MIXED))
    np.testing.assert_array_equal(own.rows[0].logits, pre.rows[0].logits)


def test_streaming_cuts_what_it_would_have_cut(lm):
    policy = policy_of("snapkv").replace(attention=MIXED)
    apart = kvjax.compress(kvjax.prefill(lm, ids_of(90), needs=policy), policy)
    at_once = kvjax.prefill(lm, ids_of(90), streaming=policy)
    np.testing.assert_array_equal(at_once.logits, apart.logits)
    for layer in range(3):
        for a, b in zip(at_once.kept(layer)[0], apart.kept(layer)[0], strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_second_prompt_compiles_nothing(lm):
    kvjax.prefill(lm, ids_of(90), attention=MIXED)
    with compilations() as seen:
        kvjax.prefill(lm, ids_of(89, 5), attention=MIXED)
    assert seen == []


def test_layers_with_other_patterns_share_a_program(lm):
    each = ((AShape(4, 9),) * 4, (VerticalSlash(30, 50),) * 4, (BlockSparse(1),) * 4)
    with compilations() as seen:
        kvjax.prefill(lm, ids_of(90), attention=MInference(each))
    assert seen.count("jit(_layer)") == 1


def test_the_report_and_the_search(lm):
    ids, candidates = ids_of(200, 6), (AShape(0, 1), AShape(4, 60), VerticalSlash(30, 50), AShape(0, 200))
    one = report(lm, ids, MInference(AShape(0, 200)))
    assert one.share.shape == (3, 4)
    np.testing.assert_allclose(one.mass, 1, atol=1e-5)
    assert one.error.max() < 1e-5 and (one.share == 1).all()
    part = report(lm, ids, MInference(AShape(4, 20)))
    assert (part.mass < 1).all() and (part.error > 0.01).all() and (part.share < 1).all()
    made = assign(lm, ids, candidates, first=100)
    assert (made.tables["patterns"][..., 0] == 0).all() and (made.tables["patterns"][..., 2] == 200).all()  # holds everything
    made = assign(lm, ids, candidates[:3], first=100, rewritten=True)
    assert set(made.tables["patterns"][..., 0].flatten()) == {1}
    policy = kvjax.methods.minference(made)
    assert policy == kvjax.Policy(attention=MInference.of(made.tables["patterns"]))
    assert kvjax.generate(lm, ids, policy, max_new_tokens=2, stop=()).tokens.shape == (1, 2)


@pytest.mark.parametrize("kind, nearest, by_score", [(MInference, 100, 0), (Searched, 30, 70)])
def test_offsets_that_are_forced(kind, nearest, by_score):
    """Of vertical-slash (3500, 100) the kernel chooses no diagonal by score, the search 70."""
    q, k, _ = drawn(320)
    index = jax.jit(lambda q, k: index_of((VerticalSlash(3500, 100),) * 6, q, k, jnp.array([320]), kind))(q, k)
    rows = slow.last_rows(q[0, 0, 0].astype(np.float64), k[0, 0].astype(np.float64), 64)
    _, want, _ = slow.vertical_slash(rows, 320, 100, (30, nearest))
    found = np.flatnonzero(index.offsets[0, 0, 0])
    np.testing.assert_array_equal(found, want)
    assert found[:nearest].tolist() == list(range(nearest)) and len(found) - nearest == by_score


def test_what_the_search_tries(lm):
    assert searched(BlockSparse(100), 30_000) == Searched(BlockSparse(58))  # 469 blocks; 3,712 keys, the kernel 6,400
    assert searched(BlockSparse(100), 90) == Searched(BlockSparse(1))
    assert searched(VerticalSlash(3500, 100), 90) == Searched(VerticalSlash(3500, 100)) != MInference(VerticalSlash(3500, 100))
    ids = ids_of(200, 6)
    made = assign(lm, ids, (BlockSparse(100),), first=0)
    assert (made.tables["patterns"] == (2, 100, 0)).all()
    np.testing.assert_allclose(made.tables["mass"], report(lm, ids, MInference(BlockSparse(1))).mass, atol=1e-6)
    assert (made.tables["mass"] < 0.999).all()  # 100 blocks would hold everything


def test_the_artefact_outlives_its_process(lm, tmp_path):
    made = assign(lm, ids_of(80), (AShape(0, 8), AShape(8, 1)), first=10)
    artefact.save(made, tmp_path / "heads")
    assert kvjax.methods.minference(tmp_path / "heads") == kvjax.methods.minference(made)


def test_the_best_candidate_of_each_head_and_how_files_have_it():
    mass = np.array([[[0.1, 0.9]], [[0.5, 0.9]]])
    assert best(mass, [AShape(1, 2), BlockSparse(3)]) == ((BlockSparse(3), AShape(1, 2)),)
    released = [as_released(x) for x in (AShape(100, 800), BlockSparse(), VerticalSlash(30, 800))]
    assert released == [VerticalSlash(100, 800), VerticalSlash(1000, 6096), VerticalSlash(30, 800)]


def test_candidates_for_a_quarter_of_the_length():
    quarter = [scaled(pattern, 0.25) for pattern in CANDIDATES]
    assert quarter[:3] == [AShape(25, 200), VerticalSlash(8, 200), VerticalSlash(25, 188)] and quarter[-1] == BlockSparse(25)
    assert scaled(AShape(0, 1), 0.25) == AShape(0, 1) and [scaled(x, 1.0) for x in CANDIDATES] == list(CANDIDATES)


def test_what_does_not_fit_is_said_at_once(lm, prompt):
    with pytest.raises(ValueError, match="pattern for each of"):
        kvjax.prefill(lm, prompt, attention=MInference(MIXED.patterns[:2]))
    with pytest.raises(ValueError, match="int \\[layers, query heads, 3\\]"):
        MInference.of(np.full((3, 4, 3), 7))
    with pytest.raises(ValueError, match="a query sees itself"):
        AShape(4, 0)
    windowed = toy_config(model_type="mistral", sliding_window=16)
    with pytest.raises(ValueError, match="sliding window"):
        kvjax.prefill(models.random(mistral.config(windowed), seed=0), prompt, attention=MInference())
    both = [policy_of("snapkv"), kvjax.methods.minference()]
    with pytest.raises(ValueError, match="prefill for each"):
        kvjax.prefill(lm, prompt, needs=both)
