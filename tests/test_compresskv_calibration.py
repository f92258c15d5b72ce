"""The tables of CompressKV against what NumPy attention over dense keys gives: which heads copy, what a cut costs a layer."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import kvjax
from kvjax.calibrate import layer_error
from kvjax.calibrate import retrieval_heads as rh
from kvjax.calibrate.attention_rows import rows_of, watch
from kvjax.calibrate.compresskv import NeedleRun, layer_errors, semantic_heads
from tests.conftest import ids_of
from tests.eager import attention, dense, run_dense
from tests.reference import compresskv as ref
from tests.reference.test_examples_compresskv import HEAD_0, HEAD_1

HEADS = np.array([[2, 0], [3, 1], [1, 2]], np.int32)
PROMPT = ids_of(70, 8)
always = lambda response, answer: True  # noqa: E731


def test_k1():
    rows = np.stack([HEAD_0, HEAD_1], 1)[:, None]
    assert_allclose(rh.semantic_score(rows, [11, 99, 13], [11, 12, 13]), [[1.05, 0.09]])
    assert_allclose(rh.semantic_score(rows[:1], [11], [11, 12, 11]), [[0.4, 0.06]])
    assert_allclose(rh.semantic_score(rows[:1], [11], [11, 12, 11], count=rh.per_occurrence), [[0.8, 0.12]])


def test_scores_are_those_of_the_transcription():
    rng = np.random.default_rng(0)
    rows, prompt = rng.random((6, 2, 3, 12)), rng.integers(0, 5, 12).tolist()
    generated = rng.integers(0, 5, 6).tolist()
    top, span = rows.argmax(-1), prompt[4:8]
    for count, multiplicity in ((rh.once, False), (rh.per_occurrence, True)):
        got = rh.semantic_score(rows[..., 4:8], generated, span, count=count)
        want = [[ref.span_mass(rows[:, i, h, 4:8], generated, span, multiplicity) for h in range(3)] for i in range(2)]
        assert_allclose(got, want)
    got = rh.classical_score(top, generated, prompt, start=4, size=4)
    want = [[ref.copy_score(rows[:, i, h], generated, prompt, 4, 4) for h in range(3)] for i in range(2)]
    assert_allclose(got, want)
    assert (got > 0).any()


def test_ranking_ties():
    assert rh.rank_heads(np.array([[0.2, 0.5, 0.5], [0, 0, 0]])).tolist() == [[1, 2, 0], [0, 1, 2]]
    assert rh.top_heads(np.array([[0.2, 0.5], [0.5, 0.1]]), 1).tolist() == [[False, True], [False, False]]


@pytest.mark.parametrize(
    "prompt, answer, start",
    [
        ([9, 1, 2, 3, 9], [1, 2, 3], 1),
        ([9, 3, 1, 2, 9], [1, 2, 3], 1),  # the ids, not their order
        ([9, 1, 2, 9], [1, 2, 3], None),
        ([1, 2], [1, 2, 3], None),
        ([1, 2], [], None),
        ([8, 8, *range(1, 11), 99, 8], [*range(1, 11), 50], 1),  # 10 of 11 ids are enough, and the first such window is taken
        ([8, 8, *range(1, 10), 99, 8], [*range(1, 10), 50], None),  # 9 of 10 are not more than 0.9
    ],
)
def test_span(prompt, answer, start):
    assert rh.locate_span(prompt, answer) == start


def test_success_is_recall_of_the_answers_words_above_one_half():
    answer = rh.words("Eat a sandwich, and sit.")
    assert answer == ["eat", "a", "sandwich", "and", "sit"]
    assert rh.recall(["eat", "eat", "a"], answer) == pytest.approx(0.4)
    assert rh.succeeded(["a", "sit", "SANDWICH".lower()], answer) and not rh.succeeded(["a", "a", "a", "sit"], answer)
    assert rh.recall(["a"], []) == 0.0


def test_k4_errors():
    assert_allclose(layer_error.layer_scores(np.array([[2.0, 6.0], [1.0, 1.0]])), [0.375, 0.625])
    assert layer_error.relative_error(np.array([1.0, 0, 2]), np.array([1.0, 1, 0])) == pytest.approx(0.99999955, abs=1e-8)


def test_data_sets_without_a_usable_sample_are_left_out():
    errors = np.array([[2.0, 6.0], [0.0, 0.0], [np.nan, 1.0]])
    assert_allclose(layer_error.layer_scores(errors), [0.25, 0.75])
    assert_allclose(layer_error.layer_scores(errors[1:]), [0.5, 0.5])


def test_watched_rows_are_the_attention_of_the_token_that_predicts(lm):
    pre = kvjax.prefill(lm, PROMPT[:-1], needs=frozenset())
    seen = [(token, np.asarray(rows_of(cache))) for token, cache in watch(lm, pre, PROMPT[-1], steps=5, stop=())]
    fed = [PROMPT[-1], *(token for token, _ in seen[:-1])]
    logits, rows = run_dense(
        lm, dense(pre, [np.arange(69)] * 3), fed, start=69, watch=lambda layer, q, k, v: attention(q, k, v)[1].reshape(4, -1)
    )
    assert logits.argmax(-1).tolist() == [token for token, _ in seen]
    for (_, got), want in zip(seen, rows, strict=True):
        n = want[0].shape[-1]
        assert_allclose(got[..., :n], np.stack(want), atol=1e-5)
        assert not got[..., n:].any()


def test_the_step_that_gives_a_stop_token_is_the_last(lm):
    pre = kvjax.prefill(lm, PROMPT[:-1], needs=frozenset())
    tokens = [token for token, _ in watch(lm, pre, PROMPT[-1], steps=6, stop=())]
    stop = tokens[2]
    stopped = [token for token, _ in watch(lm, pre, PROMPT[-1], steps=6, stop=(stop,))]
    assert stopped == tokens[: tokens.index(stop) + 1]


def test_semantic_heads_are_the_mean_over_successful_runs(lm):
    pre = kvjax.prefill(lm, PROMPT[:-1], needs=frozenset())
    seen = [(token, np.asarray(rows_of(cache))) for token, cache in watch(lm, pre, PROMPT[-1], steps=6, stop=())]
    generated, rows = [token for token, _ in seen], np.stack([rows for _, rows in seen])
    answer = PROMPT[20:24]
    copied = [*PROMPT[:20], *generated[:4], *PROMPT[24:]]  # a span that holds what this model is apt to say
    done, absent = [], min(set(range(128)) - set(PROMPT))
    tables = semantic_heads(
        lm, [NeedleRun(PROMPT, answer), NeedleRun(copied, generated[:4]), (PROMPT, [absent], ())], steps=6, success=always,
        progress=lambda *at: done.append(at),
    )  # fmt: skip
    assert done == [(1, 3), (2, 3), (3, 3)]
    one = rh.semantic_score(rows[..., 20:24], generated, answer)
    two = semantic_heads(lm, [NeedleRun(copied, generated[:4])], steps=6, success=always)["srh_score"]
    assert_allclose(tables["srh_score"], (one + two) / 2, atol=1e-6)
    assert tables["srh"].tolist() == rh.rank_heads(tables["srh_score"]).tolist()
    assert tables["srh"].dtype == np.int32 and tables["classical_score"].shape == (3, 4)


def test_no_successful_run_is_no_calibration(lm):
    with pytest.raises(ValueError, match="none of 2 runs succeeded"):
        runs = [NeedleRun(PROMPT, PROMPT[40:43]), NeedleRun(PROMPT, PROMPT[10:14])]
        semantic_heads(lm, runs, steps=2, success=lambda *words: False)


@pytest.mark.slow
def test_layer_errors_are_those_of_dense_attention(lm):
    pre = kvjax.prefill(lm, PROMPT)
    tables = layer_errors(lm, [[PROMPT, PROMPT[:30]], [ids_of(64, 9)], [PROMPT[:20]]], HEADS, steps=4, stop=())
    assert tables["layer_error"].shape == (3, 3) and not tables["layer_error"][2].any()
    assert_allclose(tables["layer_score"], layer_error.layer_scores(tables["layer_error"]), rtol=1e-6)
    scorer = kvjax.score.RetrievalHeads(HEADS)
    cut = kvjax.Policy(score=scorer, select=kvjax.select.TopK(recent=8), budget=32)
    kept = [kvjax.compress(pre, cut).kept(layer)[0][0] for layer in range(3)]
    full = kvjax.methods.full()
    out = kvjax.decode(lm, kvjax.compress(pre, full), full, max_new_tokens=4, stop=())

    def compare(layer, q, k, v):
        seen = np.isin(np.arange(k.shape[1]), kept[layer]) | (np.arange(k.shape[1]) >= 70)
        weight = np.asarray(lm.params["layers"][layer]["attention"]["o"]["weight"], np.float64)
        whole, part = (weight @ attention(q, k, v, only)[0].reshape(-1) for only in (None, seen))
        return ref.relative_error(whole, part)

    _, errors = run_dense(lm, dense(pre, [np.arange(70)] * 3), out.tokens[0], start=70, watch=compare)
    assert_allclose(tables["layer_error"][0], np.sum(errors, axis=0), rtol=1e-4)
    assert (tables["layer_error"][0] > 1e-3).all()


def test_a_budget_the_window_fills_is_refused(lm):
    with pytest.raises(ValueError, match="above the window"):
        layer_errors(lm, [[PROMPT]], HEADS, budget=8, window=8)
