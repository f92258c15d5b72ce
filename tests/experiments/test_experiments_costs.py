"""What answers cost: the closed forms of the KV footprint, prefill token equivalents, and both in rows and reports."""

import itertools
import json
from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import psutil
import pytest

import kvjax
from experiments import cost, sweep
from experiments.answer_cost import FIGURES, Spent, layer_tokens, of_row, spent
from experiments.cost import Cost, _together
from experiments.footprint import evicted, footprint, streaming, thinned
from experiments.full_cache import full_nbytes
from experiments.measure import measure, peak_bytes, tokens_read
from experiments.policies import parse_policy
from experiments.prefill_equivalents import Call, gamma, hardware_of, multi_head, pte
from experiments.report import markdown, tables
from experiments.report.comparison import compare
from experiments.rows import Found, read
from experiments.tasks import ppl
from experiments.tasks.answering import Answering
from experiments.tasks.conversation import CONVERSATION
from experiments.tasks.datasets import aime
from experiments.tasks.example import Example
from experiments.tasks.paraphrase import PARAPHRASE
from experiments.tasks.sampled import SampledAnswering
from experiments.tasks.text import Haystack
from tests.conftest import ids_of
from tests.experiments.conftest import TEXT, row


def test_footprints_are_those_of_the_papers_code():
    """8 tokens and 2 more: a streaming head (1 sink, window 2), and eviction of half beside a window of 1; by fours or at once."""
    held = streaming(8, 1, 2)
    assert held == streaming(4, 1, 2) == 3 and evicted(4, 0.5, 1) == 3
    found = footprint([(0, 4), (3, 4)], 2, held=(held, held))
    assert found.footprint == 40 / 55 and found.peak == 0.7
    mixed = footprint([(0, 4), (3, 4)], 2, held=(6, 8))
    assert mixed.footprint == 47 / 55 and mixed.peak == 0.8
    assert (found.footprint + mixed.footprint) / 2 == pytest.approx(0.790909, abs=1e-6)
    once = footprint([(0, 8)], 2, held=(held, held)), footprint([(0, 8)], 2, held=(5, 7))
    assert [x.footprint for x in once] == [44 / 55, 49 / 55] and once[0].peak == once[1].peak == 0.8


def test_evicting_after_a_long_prompt_hardly_lowers_the_footprint():
    n, m, chunk = 130_560, 512, 32_768
    kept = evicted(n, 0.9, 64)
    once = footprint([(0, n)], m, held=(kept, kept + m))
    assert once.footprint == pytest.approx(0.993000, abs=1e-6) and once.peak == pytest.approx(0.996094, abs=1e-6)
    window = streaming(n, 128, 1024)
    assert footprint([(0, n)], m, held=(window, window)).footprint == pytest.approx(0.992272, abs=1e-6)
    chunks, past = [], 0
    for begin in range(0, n, chunk):
        length = min(chunk, n - begin)
        chunks.append((past, length))
        past += evicted(length, 0.9, 64)
    found = footprint(chunks, m, held=(past, past + m))
    assert found.footprint == pytest.approx(0.324748, abs=1e-6) and found.peak == pytest.approx(0.322563, abs=1e-6)
    assert footprint([(0, n)], m, held=(n, n + m)).footprint == 1
    assert footprint([(0, 5)], 0, held=(5, 5)).footprint == 1


def test_layers_that_compute_fewer_tokens_have_a_smaller_footprint():
    """Of three tokens one goes on to the second layer: 6 entries and 1; of 1000 a half, (1 + 1 / 4) / 2."""
    found = thinned([3, 1], 0, held=(1, 1))
    assert found.footprint == pytest.approx(3.5 / 6) and found.peak == pytest.approx(2 / 3)
    assert thinned([1000, 500], 0, held=(500, 500)).footprint == pytest.approx(0.625, abs=2e-4)
    later = thinned([3, 1], 2, held=(2, 4))
    assert later.footprint == pytest.approx((3.5 + 3 + 4) / 15) and later.peak == pytest.approx(4 / 5)
    assert thinned([8, 8], 2, held=(3, 3)) == footprint([(0, 8)], 2, held=(3, 3))


def test_prefill_token_equivalents_are_those_of_the_paper():
    of_h100, of_a100 = (gamma(multi_head(32, 4096), 8_030_000_000, hardware_of(card)) for card in ("H100", "A100"))
    assert (of_h100, of_a100) == (pytest.approx(0.00964, abs=5e-6), pytest.approx(0.00500, abs=5e-6))
    assert of_h100 * 1024 / 4096 == pytest.approx(0.00241, abs=5e-6)
    assert pte([Call(1000, 1000, 100), Call(1300, 1300, 50)], 0.01) == pytest.approx(3950)
    assert pte([Call(1000, 1000, 100), Call(200, 1300, 50)], 0.01) == pytest.approx(2850)
    with pytest.raises(ValueError, match="no figures for 'Z1', only for H100, A100"):
        hardware_of("Z1")


def test_a_sweep_writes_the_costs_and_a_report_shows_them(cli, talker, tmp_path):
    text, rows, out = tmp_path / "text.txt", tmp_path / "rows.jsonl", tmp_path / "report"
    text.write_text(TEXT)
    options = ["--model", "toy", "--text", text, "--tasks", "paraphrase", "--lengths", 700, "--prompts", 1]
    code, _, err = cli("sweep", *options, "--policies", "snapkv", "--budgets", "0.25", "--out", rows)
    assert code == 0, err
    full, snapkv = sorted(read(rows), key=lambda found: found["policy"])
    for found in (full, snapkv):
        assert set(FIGURES) <= set(found) and 0 < found["answer_tokens"] <= 16
        assert found["seconds_to_first_token"] >= found["seconds_prefill"] + found["seconds_compress"]
    assert full["kv_footprint"] == pytest.approx(1) == full["kv_peak"]
    assert snapkv["kv_footprint"] < 1 and snapkv["kv_peak"] < 1
    assert full["pte"] > full["prompt_tokens"] and snapkv["pte_stored"] < full["pte_stored"] < full["pte"]
    code, printed, err = cli("report", rows, "--out", out)
    assert code == 0, err
    assert "KV footprint" in printed and "| full | - | 1.000 / " in (out / "table.md").read_text()
    page = (out / "index.html").read_text()
    assert all(head in page for head in ("KV footprint", "PTE stored", "answer tokens", "first token ms"))


def test_a_prompt_on_the_host_is_held_whole(cli, talker, tmp_path):
    """FastDecode's pool has a quarter of the prompt, the host everything."""
    text, rows = tmp_path / "text.txt", tmp_path / "rows.jsonl"
    text.write_text(TEXT)
    options = ["--model", "toy", "--text", text, "--tasks", "paraphrase", "--lengths", 700, "--prompts", 1]
    code, _, err = cli("sweep", *options, "--policies", "fastdecode", "--budgets", "0.25", "--out", rows)
    assert code == 0, err
    found = next(found for found in read(rows) if found["policy"] == "fastdecode")
    assert found["kv_footprint"] == pytest.approx(1) == found["kv_peak"] and found["kept_share"] < 0.5
    assert found["held_slots"] == 2 * 2 * found["prompt_tokens"] and 16 < found["stored_bits"] < 32
    assert "layer_tokens" not in found


def test_a_layer_computes_what_the_one_before_left(lm):
    """Of 90 tokens the first of three layers keeps all, the second fewer: so many go through the third."""
    policy = kvjax.methods.pyramid_infer(p=0.3, recent=0.1, least=8, interval=1)
    cache = kvjax.prefill(lm, ids_of(90), streaming=policy)
    kept = cache.lengths[:, 0]
    found = layer_tokens(cache, 90)
    assert found == [90, 90, kept[1, 0]] and (kept[:, 0] == kept[:, 1]).all() and kept[1, 0] < 80
    facts = {"prompt_tokens": 90, "held_slots": int(kept.sum()), "stored_bits": 16.0, "seconds_compress": 0.0}
    row = of_row(lm, facts | {"layer_tokens": found}, Spent(fed=0, generated=0, held=float(kept.mean()), seconds=0.0))
    assert row["kv_footprint"] == pytest.approx((2 * 90 * 91 + found[2] * (found[2] + 1)) / (3 * 90 * 91))
    assert row["kv_peak"] == pytest.approx(sum(found) / (3 * 90)) and row["pte"] == row["pte_stored"] == 90


def test_fewer_bits_cost_less_to_read(lm):
    """gamma' = gamma (H_kv d / D) (bits / 16): here half the width, and 100 tokens held of 8 bits, read by 10."""
    facts = {"prompt_tokens": 100, "held_slots": 600, "stored_bits": 8.0, "seconds_compress": 0.0}
    row = of_row(lm, facts, Spent(fed=0, generated=10, held=100.0, seconds=0.0))
    assert row["pte_stored"] - 100 == pytest.approx((row["pte"] - 100) * (2 * 16 / 64) * 8 / 16)


def test_feeding_a_batch_costs_each_row_its_share(lm):
    """Three seconds of two rows; the time to the first token is compressing and feeding."""
    out = SimpleNamespace(cache=SimpleNamespace(held=np.array([[[4, 8], [1, 3]]])), lengths=np.array([5, 7]))
    assert spent(out, [10, 20], 3.0) == [Spent(10, 5, 6.0, 1.5), Spent(20, 7, 2.0, 1.5)]
    facts = {"prompt_tokens": 100, "held_slots": 600, "stored_bits": 16.0, "seconds_compress": 0.25}
    row = of_row(lm, facts, Spent(fed=10, generated=5, held=110.0, seconds=1.5))
    assert row["seconds_to_first_token"] == 1.75 and row["answer_tokens"] == 5


def test_seconds_are_those_of_a_token_of_a_row(talker, monkeypatch):
    """By a clock that goes on a second whenever it is read: a batch of 4 rows of 256 tokens takes one."""
    clock = itertools.count()
    monkeypatch.setattr("experiments.measure.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    found = list(ppl.examples(talker, 64, 2, 0, haystack=talker.encode(TEXT)))
    cells = [parse_policy("knorm", budget) for budget in (0.5, 0.25)]
    rows = [made for made, _ in measure(talker, ppl, found, cells, needs=[cell.policy for cell in cells])]
    assert [found[0].room, *(x["rows"] for x in rows)] == [256, 4, 4, 4, 4]
    assert [x["seconds_per_token"] for x in rows] == [1 / 4 / 256] * 4
    assert {(x["seconds_prefill"], x["seconds_compress"]) for x in rows} == {(1, 1)}


def test_seconds_are_those_of_the_tokens_that_were_read(talker, monkeypatch):
    """By the same clock: an answer of 16 tokens, and one that ends at its first."""
    clock = itertools.count()
    monkeypatch.setattr("experiments.measure.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    (example,) = PARAPHRASE.examples(talker, 700, 1, 0, haystack=talker.encode(TEXT), mode="unseen")

    def measured(stop):
        cell = parse_policy("full", None)
        return next(measure(talker, Answering(PARAPHRASE), [replace(example, stop=stop)], [cell], needs=[cell.policy]))[0]

    whole = measured(())
    assert whole["answer_tokens"] == 16 and whole["seconds_per_token"] == 1 / (len(example.fed) + 16)
    read = kvjax.prefill(talker, list(example.compressed + example.fed), needs=frozenset())
    ended = measured((int(read.rows[0].logits.argmax()),))
    assert ended["answer_tokens"] == 1 and ended["seconds_per_token"] == 1 / (len(example.fed) + 1)


def test_tokens_read_are_those_of_a_batchs_longest_rows():
    """Or what a task says of several answers, which is no figure of a row."""
    rows = [{"spent": Spent(3, 5, 0.0, 0.0)}, {"spent": Spent(4, 1, 0.0, 0.0)}]
    assert tokens_read(rows) == 4 + 5 and tokens_read([{"nll": 1.0}]) == 0
    several = [{"read": 70, "score": 1.0}, {"read": 70}]
    assert tokens_read(several) == 70 and several == [{"score": 1.0}, {}]


def test_the_peak_is_told_in_bytes():
    """Where the device does not count: at least what this process holds now, and not a thousand times as much."""
    held = psutil.Process().memory_info().rss
    assert 0.9 * held < peak_bytes() < 100 * held


def test_a_dry_run_counts_prefills_steps_and_the_largest_batch(lm):
    """Two prompts of 5 tokens whose cells are batches of 3 rows and of 1, 4 tokens each; then a smaller batch."""
    first = Example("t", "-", 5, 0, context=(1, 2, 3, 4, 5), new_tokens=4)
    found = _together(lm, Cost(), first, 2, [(3, 4), (1, 4)])
    assert found == Cost(prompts=2, rows=4, prefill_tokens=10, steps=8, row_steps=16, largest_bytes=3 * full_nbytes(lm, 9))
    assert _together(lm, found, first, 1, [(2, 4)]) == Cost(3, 6, 0, 15, 12, 24, 3 * full_nbytes(lm, 9))
    assert _together(lm, found, first, 1, [(4, 4)]).largest_bytes == 4 * full_nbytes(lm, 9)


def test_the_time_of_a_dry_run_is_that_of_products_and_of_reading_the_weights(talker, monkeypatch, tmp_path):
    """2 FLOP a parameter and token at 1,000 a second, and every parameter of 4 bytes for a step at 100 bytes a second."""
    monkeypatch.setattr(cost, "rates", lambda lm: (1000.0, 100.0))
    plan = sweep.Plan(((ppl, "-"),), (64,), (parse_policy("knorm", 0.5),), prompts=3)
    rows = Found(tmp_path / "none", sweep.identity(talker, Haystack(TEXT, "toy")))
    found = cost.estimate(talker, plan, talker.encode(TEXT), rows)
    parameters = sum(x.size for x in jax.tree.leaves(talker.params))
    assert (found.prompts, found.rows, found.prefill_tokens, found.steps) == (3, 6, 3 * 64, 3)
    assert found.seconds == pytest.approx(2 * parameters * 192 / 1000 + 3 * 4 * parameters / 100)


@pytest.mark.parametrize(("name", "fed", "steps"), [
    ("knorm", 255, 1 + 4), ("knorm", 513, 2 + 4), ("h2o", 255, 255 + 4), ("kivi", 255, 255 + 4), ("knorm", 0, 4),
])  # fmt: skip
def test_known_tokens_are_steps_of_their_own_where_they_are_fed_one_by_one(name, fed, steps):
    """Of policies that evict while decoding, and of storages that go token by token."""
    assert cost.steps(fed, 4, parse_policy(name, 0.5).policy) == steps and cost.steps(0, 0, parse_policy(name, 0.5).policy) == 1


def test_a_plan_counts_all_turns_and_samples(reader, tmp_path):
    """Four turns of 32 tokens each, fed one by one to H2O; eight answers of 32,768 tokens at most."""
    haystack = reader.encode(TEXT)
    (example,) = CONVERSATION.examples(reader, 1500, 1, 0, haystack=haystack, mode="unseen")
    fed = len(example.fed) + sum(map(len, example.later))
    assert CONVERSATION.tokens(example) == (fed, 4 * 32) and len(example.later) == 3
    (tmp_path / "aime24.jsonl").write_text(json.dumps({"question": "What is 1 + 1?", "answer": "2"}) + "\n")
    sampled = SampledAnswering(aime.tasks(tmp_path)[0])
    (made,) = sampled.examples(reader, 400, 1, 0, haystack=(), mode="seen")
    assert sampled.tokens(made) == (len(made.fed), 8 * 32_768)
    rows = Found(tmp_path / "none", sweep.identity(reader, Haystack(TEXT, "toy")))
    plan = sweep.Plan(((CONVERSATION, "unseen"),), (1500,), (parse_policy("h2o", 0.5),), prompts=1)
    found = cost.estimate(reader, plan, haystack, rows)
    assert found.steps == (-(-fed // 512) + 128) + (fed + 128) and found.rows == 2


def test_rows_without_costs_have_no_columns_for_them():
    (table,) = tables([row()])
    assert "KV footprint" not in markdown(table) and compare([row()], "full")[0].entries[0].costs == {}
    (table,) = tables([row(kv_footprint=0.5, pte_stored=1234.5, answer_tokens=7)])
    assert "| snapkv | 0.5 | 0.500 / 1234 / 7 |" in markdown(table) and "first token" not in markdown(table)
    most = [row(policy=name, policy_repr=name, kv_footprint=0.5) for name in ("snapkv", "knorm", "tova")]
    most[0] |= {"seconds_to_first_token": 0.25}
    (table,) = tables(most)
    assert "| knorm | 0.5 | 0.500 |" in markdown(table), "a figure that most cells lack has no place"
    (table,) = tables(most[:2])
    assert "| knorm | 0.5 | 0.500 / - |" in markdown(table) and "| snapkv | 0.5 | 0.500 / 250 |" in markdown(table)


def test_a_cost_that_is_no_number_is_no_row(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row(kv_footprint="x")) + "\n")
    with pytest.raises(ValueError, match="kv_footprint: expected a finite number"):
        read(file)
