"""What learned weights are served beside: what needs no learning, and the heads that CompressKV finds."""

import json

import jax
import numpy as np
import pytest

import kvjax
from experiments.train import dmc, kvzap, less, locret, merged, retrieval_heads, served
from experiments.train.retrieval_heads import agreement, as_many, scores_for, scores_of
from kvjax.artefacts.artefact import Artefact, model_facts, save
from kvjax.artefacts.weights import tables_of
from kvjax.train import Example, untrained
from tests.artefacts import toy


def test_a_kv_heads_score_is_the_mean_of_its_query_heads():
    found = toy("compresskv")
    given = found.tables["srh_score"]
    np.testing.assert_allclose(scores_of(found), np.stack([given[:, :2].mean(1), given[:, 2:].mean(1)], 1), rtol=1e-6)
    assert scores_for("smollm2-135m").shape == (30, 3) and scores_for("toy") is None


def test_as_many_heads_as_are_full_of_the_highest_scores():
    scores, flags = np.array([[0.3, 0.1], [0.9, 0.2]]), np.array([[True, False], [False, True]])
    np.testing.assert_array_equal(as_many(scores, flags), [[True, False], [True, False]])
    assert as_many(np.zeros((2, 2)), flags).sum() == 2 and not as_many(scores, np.zeros((2, 2), bool)).any()


def test_agreement_of_two_rankings():
    """ρ = 1 - 6 Σd² / (n (n² - 1)) with d = 0, 0, 1, -1 of four heads: 0.8; one of the two full heads is shared."""
    alpha = np.array([[0.1, 0.2], [0.3, 0.4]])
    assert agreement(alpha, 5 * alpha) == pytest.approx({"spearman": 1.0, "p_value": 0.0, "shared": 1.0})
    found = agreement(alpha, np.array([[1.0, 2.0], [4.0, 3.0]]))
    assert found["spearman"] == pytest.approx(0.8) and found["shared"] == 1.0
    assert agreement(alpha, np.array([[1.0, 3.0], [2.0, 4.0]]))["shared"] == 0.5


def made(lm, method, tables, settings):
    return Artefact(method, model_facts(lm), {}, {**settings, "seed": 0}, tables)


def test_a_gate_is_beside_its_start_and_what_needs_no_learning(talker):
    learner = kvzap.learner(kvzap.DEFAULTS | {"hidden": 0}, None)
    tables = {name: x + 1 for name, x in tables_of(untrained(talker, learner)).items()}
    settings = kvzap.DEFAULTS | {"hidden": 0, "first": None, "further": None}
    found = served.rivals(made(talker, "kvzap", tables, settings), talker, 24, 0)
    assert set(found) == {"full", "streaming_llm", "snapkv", "kvzip", "learned", "untrained"}
    assert found["learned"] != found["untrained"] and found["learned"].budget == found["kvzip"].budget == 24


def test_heads_are_beside_as_many_at_random(talker):
    alpha = np.array([[0.9, 0.1], [0.8, 0.2]], np.float32)
    artefact = made(talker, "duo_attention", {"alpha": alpha}, {"sinks": 4, "recent": 20})
    found = served.rivals(artefact, talker, 24, 0)
    others = {"full", "streaming_llm", "snapkv"}
    patterns = {name: np.asarray(policy.allocate.pattern) for name, policy in found.items() if name not in others}
    assert others < set(found) and set(patterns) == {"learned", "untrained", "shuffled 0", "shuffled 1", "shuffled 2"}
    np.testing.assert_array_equal(patterns["learned"], alpha > 0.5)
    assert {int(flags.sum()) for flags in patterns.values()} == {2}


def test_the_last_tokens_alone_do_not_fill_a_head(talker):
    """Locret pins 100 tokens: with 24 slots, its gate would have nothing to say."""
    tables = tables_of(untrained(talker, locret.learner(locret.DEFAULTS, 24)))
    found = served.rivals(made(talker, "locret", tables, locret.DEFAULTS | {"budget": 24}), talker, 24, 0)
    assert {found[name].select.recent for name in ("learned", "untrained")} == {served.RECENT}
    roomy = served.rivals(made(talker, "locret", tables, locret.DEFAULTS | {"budget": 24}), talker, 128, 0)
    assert roomy["learned"].select.recent == 100
    pinned = served.at_budget(roomy["learned"], 128, sinks=4)
    assert (pinned.select.sinks, pinned.select.recent) == (4, 100)


def test_what_is_added_to_a_cache_is_beside_that_cache(talker):
    how = less.DEFAULTS | {"hidden": 8}
    tables = tables_of(untrained(talker, less.learner(how, 24)))
    found = served.rivals(made(talker, "less", tables, how | {"budget": 24}), talker, 24, 0)
    assert found["h2o"] == kvjax.methods.h2o(budget=24) and found["learned"].merge != found["h2o"].merge


def test_what_is_beside_heads_that_keep_all_has_as_many_slots():
    """Half of the heads keep 100, half 4 + 20: 62 on average; other gates have the budget that was asked for."""
    duo = Artefact("duo_attention", {}, {}, {"sinks": 4, "recent": 20}, {"alpha": np.array([[0.9, 0.1], [0.8, 0.2]], np.float32)})
    assert served.slots(duo, 16, 100) == 62
    assert served.slots(Artefact("kvzap", {}, {}, {}, {}), 16, 100) == 16


def test_equal_policies_of_several_gates_are_measured_once():
    m = kvjax.methods
    two = {"a": {"full": m.full(), "snapkv": m.snapkv(budget=8), "learned": m.knorm(budget=8)}}
    two["b"] = {"full": m.full(), "snapkv": m.snapkv(budget=9), "learned": m.knorm(budget=8)}
    want = {"a": {"full": "full", "snapkv": "snapkv", "learned": "a/learned"}}
    want["b"] = {"full": "full", "snapkv": "b/snapkv", "learned": "b/learned"}
    assert served.together(two) == want


def test_a_model_that_merges_is_beside_the_one_it_came_from(talker):
    """With the weights of the model itself, and an offset at which about half of the tokens are merged."""
    settings = dmc.DEFAULTS | {"offset": 0.0}
    tables = tables_of(untrained(talker, dmc.learner(settings, None)))
    artefact = made(talker, "dmc", tables, settings)
    draw = np.random.default_rng(4)
    texts = [Example(tuple(int(i) for i in draw.integers(1, 256, n)), (False,) * (n - 8) + (True,) * 8) for n in (40, 32)]
    slots, found = merged.by_text(talker, artefact, {"held-out": texts})
    nats = found["held-out"]
    assert 8 < slots < 30
    np.testing.assert_allclose(nats["learned"], nats["untrained"], rtol=1e-5)
    np.testing.assert_allclose(nats["trained, full cache"], nats["full"], rtol=1e-5)
    assert nats["learned"] != pytest.approx(nats["full"], abs=1e-3)
    want = served.answer_nats(talker, {"snapkv": kvjax.methods.snapkv(budget=slots)}, texts)["snapkv"]
    np.testing.assert_allclose(nats["snapkv"], want, rtol=1e-5)


def test_only_labelled_tokens_are_told_of(talker):
    """Rows of other lengths and other cuts, with a question between two answers, say what they say alone."""
    ids = [int(i) for i in np.random.default_rng(3).integers(1, 256, 60)]
    plain = Example(tuple(ids[:40]), (False,) * 30 + (True,) * 10)
    gap = Example(tuple(ids), (False,) * 44 + (True,) * 6 + (False,) * 4 + (True,) * 6)
    policies = {"streaming_llm": kvjax.methods.streaming_llm(budget=16)}
    both = served.answer_nats(talker, policies, [plain, gap])["streaming_llm"]
    alone = [served.answer_nats(talker, policies, [x])["streaming_llm"][0] for x in (plain, gap)]
    np.testing.assert_allclose(both, alone, rtol=1e-4)
    whole = served.answer_nats(talker, policies, [Example(gap.ids, (False,) * 44 + (True,) * 16)])["streaming_llm"][0]
    assert abs(whole - both[1]) > 1e-3


def test_the_labelled_tokens_are_those_at_their_places(talker):
    """With everything kept: the mean over exactly the labels but the first, as one prefill of the whole text tells them."""
    ids, labelled = [int(i) for i in np.random.default_rng(3).integers(1, 256, 60)], [44, 45, 49, 54, 58]
    text = Example(tuple(ids), tuple(i in labelled for i in range(60)))
    (found,) = served.answer_nats(talker, {"full": kvjax.methods.full()}, [text])["full"]
    logits = np.asarray(kvjax.prefill(talker, ids, all_logits=True).rows[0].all_logits)
    log_p = logits - np.logaddexp.reduce(logits, -1, keepdims=True)
    assert found == pytest.approx(-np.mean([log_p[i - 1, ids[i]] for i in labelled[1:]]), rel=1e-4)


def test_methods_that_go_on_acting_are_served_on_their_schedules(talker):
    """H2O evicts after each token, SnapKV never again: what the one says changes, and is that of decoding step by step."""
    ids = [int(i) for i in np.random.default_rng(3).integers(1, 256, 60)]
    policies = {"h2o": kvjax.methods.h2o(budget=16), "snapkv": kvjax.methods.snapkv(budget=16)}
    texts = [Example(tuple(ids), (False,) * 40 + (True,) * 20)]
    once, found = (served.answer_nats(talker, policies, texts, decoding=which) for which in (False, True))
    assert found["snapkv"] == once["snapkv"] and abs(found["h2o"][0] - once["h2o"][0]) > 1e-3
    cache, nats = kvjax.compress(kvjax.prefill(talker, ids[:40], needs=policies["h2o"]), policies["h2o"]), []
    for at in range(40, 59):
        cache = kvjax.extend(talker, cache, ids[at : at + 1], policies["h2o"]).cache
        nats.append(-float(jax.nn.log_softmax(cache.logits[0])[ids[at + 1]]))
    np.testing.assert_allclose(found["h2o"], np.mean(nats), rtol=1e-4)
    acting = {"less": {"learned": policies["h2o"]}, "kvzap": {"learned": policies["snapkv"]}}
    assert set(served.going_on(acting)) == {"less"}


def test_a_command_tells_the_rank_correlation_of_heads(tmp_path, capsys):
    """Of α that is CompressKV's own score: 1."""
    known = retrieval_heads.scores_for("smollm2-135m")
    model = {"name": "smollm2-135m", "layers": 30, "heads": 3}
    save(Artefact("duo_attention", model, {}, {}, {"alpha": known.astype(np.float32)}), tmp_path / "gate")
    retrieval_heads.main(tmp_path / "gate", tmp_path / "found.json")
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["spearman"] == pytest.approx(1.0) and found["heads"] == 90 and found["shared"] == 1.0


def test_the_difference_is_paired_over_texts():
    less = served.learned_less({"learned": [1.0, 2.0, 3.0], "full": [1.5, 2.5, 3.5]})
    assert less["full"].mean == -0.5 and set(less) == {"full"}


def test_a_mean_is_told_with_its_standard_error():
    """Of 1, 2 and 3 it is 1 / √3; of one text nobody knows it."""
    assert served.lines({"learned": [1.0, 2.0, 3.0]}) == ["learned 2.0000 ± 0.5774"]
    assert served.lines({"learned": [1.0]}) == ["learned 1.0000 ± nan"]


def test_texts_are_told_behind_a_cut_prompt(talker):
    """The full cache says what the model says of the whole text; a cut one says something else."""
    texts = [[int(i) for i in np.random.default_rng(seed).integers(1, 256, 60)] for seed in range(2)]
    policies = {"full": kvjax.methods.full(), "streaming_llm": kvjax.methods.streaming_llm(budget=8)}
    found = served.nats(talker, policies, texts, prompt=48)
    whole = kvjax.extend(
        talker, kvjax.compress(kvjax.prefill(talker, [ids[:1] for ids in texts]), policies["full"]), [ids[1:] for ids in texts],
        policies["full"], return_logits=True,
    ).logits  # fmt: skip
    log_p = np.asarray(whole) - np.logaddexp.reduce(np.asarray(whole), -1, keepdims=True)
    want = [-np.mean([log_p[row, i - 2, ids[i]] for i in range(49, 60)]) for row, ids in enumerate(texts)]
    np.testing.assert_allclose(found["full"], want, rtol=1e-4)
    assert not np.allclose(found["streaming_llm"], want, rtol=1e-4)
