"""Scores beside kvpress's: the policies are its presses, rows resume, the table counts right, the real model answers alike."""

import json

import numpy as np
import pytest

import kvjax
from experiments.bench import peer_scores
from experiments.bench.score_table import table
from experiments.bench.scores import METHODS, kept, row_key, scores
from experiments.row_checks import cell
from experiments.rows import RowFile, read
from experiments.stats import proportion
from experiments.tasks import needle
from experiments.tasks.chat import encode_plain
from experiments.tasks.text import haystack
from tests.experiments.conftest import TEXT
from tests.golden.folder import Cell
from tests.golden.policies import policy_for

PRESSES = {
    "snapkv": "SnapKVPress", "streaming_llm": "StreamingLLMPress", "tova": "TOVAPress", "knorm": "KnormPress",
    "expected_attention": "ExpectedAttentionPress",
}  # fmt: skip


def recorded(ids: list[list[int]], **changes) -> dict:
    """A set of the record, of prompts with these ids."""
    prompts = [{"digest": peer_scores.digest(x), "answer": "1", "answer_tokens": 6, "tokens": [5, 6], "score": 0.0} for x in ids]
    made = {"task": "niah_essay", "mode": "unseen", "length": 420, "source": "a test", "prompts": prompts}
    return {**made, "verdicts": {"snapkv/0.5": "0" * len(ids), "knorm/0.9": "1" * len(ids)}, **changes}


@pytest.mark.parametrize("method", METHODS)
def test_a_policy_keeps_what_the_golden_checker_keeps_for_the_press(pre, prompt, method):
    assert set(METHODS) == set(PRESSES)
    for ratio in ("0.25", "0.9"):
        theirs = policy_for(Cell("press", ratio, {"cls": PRESSES[method], "epsilon": 0.02}, None, {}), len(prompt))
        ours, golden = (kvjax.compress(pre, x) for x in (METHODS[method](kept(len(prompt), float(ratio))), theirs))
        for layer in range(3):
            for mine, other in zip(ours.kept(layer)[0], golden.kept(layer)[0], strict=True):
                np.testing.assert_array_equal(mine, other)


def test_slots_are_counted_in_floating_point_as_kvpress_does():
    assert kept(1000, 0.9) == 99 and kept(1015, 0.9) == 101 and kept(3, 0.9) == 1


@pytest.mark.slow
def test_rows_are_measured_once_and_tabled(talker, tmp_path):
    text, common = talker.encode(TEXT), {"model": "toy", "dtype": "float32", "prompts": "1:x"}
    made = list(needle.examples(talker, 420, 2, 0, haystack=text, mode="unseen"))
    sets, told = [recorded([x.compressed + x.fed for x in made])], []
    for count in (1, 2, 2):
        with RowFile(tmp_path / "rows.jsonl", common, cell) as rows:
            scores(talker, sets, text, rows, common=common, prompts=count, done=told.append)
    rows = read(tmp_path / "rows.jsonl", cell)
    assert [row["prompt"] for row in rows] == [0, 1] and len(told) == 5
    alone = kvjax.generate(talker, list(made[0].compressed + made[0].fed), kvjax.methods.full(), max_new_tokens=8, stop=())
    assert rows[0]["tokens"] == alone.tokens[0].tolist() and all(len(answer) for answer in rows[0]["answers"].values())
    found = table(sets, rows)
    snapkv, knorm = (found["cells"][f"niah_essay 420 unseen {name}"] for name in ("snapkv/0.5", "knorm/0.9"))
    assert snapkv["inside"] and snapkv["same"] == 2  # random weights find nothing, as the made-up verdicts say here
    assert not knorm["inside"] and knorm["same"] == 0 and found["ratios"]["verdicts equal to kvpress's"] == 0.5
    assert found["full"]["niah_essay 420 unseen"]["compared"] == 2 and len(found["divergences"]) == 2


def test_other_ids_than_the_peers_had_are_refused(talker):
    text = talker.encode(TEXT)
    with pytest.raises(ValueError, match="not the peers'"):
        next(peer_scores.examples(talker, recorded([[1, 2]]), text, 1))


def test_a_score_outside_the_interval_is_told_from_one_inside():
    one = recorded([[1], [2], [3], [4]], verdicts={"snapkv/0.5": "0000", "knorm/0.9": "0110"})
    one["prompts"] = [prompt | {"tokens": None} for prompt in one["prompts"]]
    rows = [row_key(one, i) | {"scores": {"snapkv/0.5": 1.0, "knorm/0.9": float(i == 1)}, "full_score": 0.0} for i in range(4)]
    snapkv, knorm = table([one], rows)["cells"].values()
    assert snapkv == {"kvjax": 1.0, "kvpress": 0.0, "low": 0.0, "high": 0.4899, "n": 4, "inside": False, "same": 0}
    assert knorm["inside"] and knorm["same"] == 3 and knorm["kvjax"] == 0.25 and knorm["kvpress"] == 0.5


def test_a_near_tie_is_listed_as_one():
    one = recorded([[1], [2]], verdicts={})
    graded = {"tokens": [5, 7], "full_score": 1.0}
    rows = [row_key(one, i) | graded | {"gaps": [1.0, gap]} for i, gap in enumerate((1e-4, 0.5))]
    found = table([one], rows)
    assert [x["tie"] for x in found["divergences"]] == [True, False]
    assert found["full"]["niah_essay 420 unseen"] == {
        "prompts": 2, "kvjax": 1.0, "transformers": 0.0, "compared": 2, "equal": 0,
    }  # fmt: skip


def test_the_record_is_whole_and_holds_no_essay():
    sets = peer_scores.load()
    assert peer_scores.RECORD.stat().st_size < 200_000
    for found in sets:
        assert all(len(line) == len(found["prompts"]) and set(line) <= {"0", "1"} for line in found["verdicts"].values())
        assert all(("context" in prompt) == (found["task"] == "kv_lines") for prompt in found["prompts"])
    asked = {(found["task"], found["length"], found["mode"]): found["verdicts"] for found in sets}
    assert {name.partition("/")[0] for name in asked["niah_essay", 1024, "unseen"]} == set(METHODS)
    assert proportion([x == "1" for x in asked["niah_essay", 1024, "unseen"]["expected_attention/0.5"]]).mean == 0.92
    stored = json.loads(peer_scores.RECORD.read_text())
    assert "quality_peers.py" in stored["how"] and stored["versions"]["kvpress"]


@pytest.mark.slow
def test_the_real_model_answers_and_scores_as_the_peers(tmp_path):
    """Full cache token by token; SnapKV at one ratio gives kvpress's verdicts on the same prompts."""
    import models

    lm = models.load("smollm2-135m")
    text = encode_plain(lm, haystack().text)
    wanted = [("niah_essay", "unseen"), ("niah_essay", "seen"), ("kv_lines", "unseen")]
    sets = [x for x in peer_scores.load() if (x["task"], x["mode"]) in wanted and x["length"] == 1024]
    sets = [x | {"verdicts": {k: v for k, v in x["verdicts"].items() if k == "snapkv/0.5"}} for x in sets]
    common = {"model": lm.name, "dtype": "float32", "prompts": "record"}
    with RowFile(tmp_path / "rows.jsonl", common, cell) as rows:
        scores(lm, sets, text, rows, common=common, prompts=3, done=lambda count: None)
    found = table(sets, read(tmp_path / "rows.jsonl", cell))
    assert all(x["kvjax"] == x["transformers"] for x in found["full"].values()), found["full"]
    assert found["full"]["kv_lines 1024 unseen"]["compared"] == 3
    assert all(x["tie"] for x in found["divergences"]), found["divergences"]
    assert [x["same"] for x in found["cells"].values()] == [3, 3], found["cells"]
