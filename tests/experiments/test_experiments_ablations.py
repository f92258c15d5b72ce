"""Ablations: every script is well-formed, and the paper's ordering is compared with ours prompt by prompt."""

from dataclasses import replace
from functools import partial

import jax
import pytest

import kvjax
import models
from experiments import cli
from experiments.ablations import artefacts, names
from experiments.ablations.ablation import Ablation, Setting, Variant
from experiments.ablations.compare import kind, pairs, worths
from experiments.ablations.figure import draw
from experiments.ablations.page import markdown
from experiments.ablations.run import Settings, find, run, setting
from experiments.console import progress
from experiments.passages import sketch
from experiments.rows import key
from experiments.tasks.text import Haystack
from kvjax.artefacts.artefact import BUILT_IN, load, model_facts, save
from models import qwen3
from tests.artefacts import toy
from tests.conftest import toy_config
from tests.experiments.conftest import TEXT, lines, row


@pytest.fixture
def variants():
    full = kvjax.methods.full
    return [Variant("good", full, {"A": 3.0, "B": 5.0}), Variant("bad", full, {"A": 1.0, "B": 2.0}), Variant("ours only", full)]


@pytest.fixture
def rows():
    found = []
    for prompt in range(6):
        found += [row(policy="good", prompt=prompt, score=1.0), row(policy="bad", prompt=prompt, score=float(prompt == 0))]
        nll = dict(task="ppl", mode="-", prompt=prompt)
        found += [row(policy="good", nll=3.2 + prompt, **nll), row(policy="bad", nll=3.1 + prompt, **nll)]
    for r in found:
        r.pop("score" if r["task"] == "ppl" else "nll", None)
    return found


def test_orderings_are_paired_and_say_when_they_are_reversed(variants, rows):
    needle, ppl = pairs(variants, rows)
    assert (needle.better, needle.worse, needle.published) == ("good", "bad", 2.5)
    assert needle.verdict.word == "holds" and needle.verdict.difference.mean == pytest.approx(5 / 6)
    assert ppl.verdict.word == "reversed" and ppl.verdict.difference.mean == pytest.approx(-0.1)


def test_only_prompts_that_both_measured_are_compared(variants, rows):
    some = [row for row in rows if row["policy"] == "good" or row["prompt"] < 2]
    assert {(pair.verdict.difference.count, pair.verdict.word) for pair in pairs(variants, some)} == {(2, "unresolved")}


def test_the_table_has_both_rankings_and_shares_of_a_16_bit_cache(variants, rows, tmp_path):
    ablation = Ablation("Title", "source", lambda setting: variants, budget=0.5, note="A note.")
    rows = [row | {"table_bytes": 1_500_000} if row["policy"] == "bad" else row for row in rows]
    text = markdown(ablation, variants, rows)
    assert "| good | 3 | 5 | 1 | 100 [61, 100] n=6 | 1 | 5.700 ± 1.963 n=6 | 2 | 5.10 | 102% | 0.00 | - |" in text
    assert "| bad | 1 | 2 | 2 | 17 [3, 56] n=6 | 2 | 5.600 ± 1.963 n=6 | 1 | 5.10 | 102% | 0.00 | 1.50 |" in text
    assert "| ours only | - | - | - | - | - | - | - | - | - | - | - |" in text and "A note." in text
    beside = markdown(ablation, variants, [*rows, *(one | {"policy": "ours only", "nll": 0.1} for one in rows if "nll" in one)])
    assert "| 5.600 ± 1.963 n=6 | 1 |" in beside, "ranked among those that the paper ranks"
    assert "| needle unseen | good | bad | +2.50 |" in text and "| 6 | holds |" in text and "| 6 | reversed |" in text
    assert "needle unseen: 1 holds, 0 reversed, 0 bounded, 0 unresolved of 1 orderings" in text
    assert "ppl: 0 holds, 1 reversed, 0 bounded" in text
    assert draw(ablation, variants, rows, tmp_path / "x.png").stat().st_size > 5000


def test_the_question_in_the_prompt_stands_before_the_unseen(variants, rows):
    seen = [row | {"mode": "seen"} for row in rows if row["task"] == "needle"]
    assert [pair.task for pair in pairs(variants, rows + seen)] == ["needle seen", "needle unseen", "ppl"]


def test_a_task_at_two_lengths_is_a_column_for_each(variants, rows):
    longer = [row | {"length": 2048} for row in rows]
    assert list(worths(rows + longer)) == [
        f"{task}, {length} tokens" for task in ("needle unseen", "ppl") for length in (rows[0]["length"], 2048)
    ]
    assert [kind(task) for task in worths(rows + longer)] == ["share", "share", "nats", "nats"]


@pytest.mark.parametrize("name", names())
def test_every_script_names_its_table(name):
    ablation = find(name)
    assert ablation.title and ("arXiv" in ablation.source or ablation.source.startswith("no paper"))
    for sizes in ((30, 3, 3, 64), (32, 8, 4, 128), (2, 1, 1, 16)):
        labels = [variant.label for variant in ablation.variants(Setting(*sizes, ablation.budget, None))]
        assert len(set(labels)) == len(labels) > 0
    paper = ablation.variants(Setting(32, 8, 4, 128, ablation.budget, None))
    assert len([variant for variant in paper if variant.paper]) >= 2 or ablation.source.startswith("no paper")


def test_an_unknown_name_lists_the_known():
    with pytest.raises(ValueError, match="d2o_table4"):
        find("table99")


def test_a_run_leaves_rows_traces_and_a_table(talker, tmp_path, monkeypatch):
    """An ablation of two cheap variants, run as any file of the folder is."""
    make = {"sinks": kvjax.methods.streaming_llm, "keys": kvjax.methods.keydiff}
    variants = lambda setting: [Variant(label, partial(method, budget=setting.budget)) for label, method in make.items()]  # noqa: E731
    cheap = Ablation("Title", "source", variants, budget=0.5, tasks="ppl")
    monkeypatch.setattr("experiments.ablations.run.find", lambda name: cheap)
    settings = Settings(lengths=(420,), prompts=2)
    with progress() as bar:
        report = run("cheap", talker, Haystack(TEXT, "toy"), settings, tmp_path, progress=bar)
    rows, traces = lines(tmp_path / "cheap.jsonl"), lines(tmp_path / "cheap.traces.jsonl")
    assert (tmp_path / "cheap.md").read_text() == report and (tmp_path / "cheap.png").is_file()
    assert len(rows) == 2 * 3 and {row["policy"] for row in rows} == {"full", "sinks", "keys"}
    first = {key(row): row["kept_slots"] for row in rows if row["prompt"] == 0}
    assert {key(trace): sum(map(sum, trace["lengths"])) for trace in traces} == first


def test_rows_of_another_budget_are_not_in_the_table(talker, tmp_path, monkeypatch):
    """The same labels at another budget, in the file that a former run left."""
    variants = lambda setting: [Variant("sinks", partial(kvjax.methods.streaming_llm, budget=setting.budget))]  # noqa: E731
    cheap = Ablation("Title", "source", variants, budget=0.5, tasks="ppl")
    monkeypatch.setattr("experiments.ablations.run.find", lambda name: cheap)
    for budget, prompts, told in ((0.5, 2, "n=2"), (0.25, 1, "n=1")):
        settings = Settings(lengths=(420,), prompts=prompts, budget=budget)
        with progress() as bar:
            report = run("cheap", talker, Haystack(TEXT, "toy"), settings, tmp_path, progress=bar)
        (line,) = (line for line in report.splitlines() if line.startswith("| sinks"))
        kept = [row for row in lines(tmp_path / "cheap.jsonl") if row["policy"] == "sinks" and row["budget"] == budget]
        assert told in line and f"| {sum(row['allocated_bytes'] for row in kept) / len(kept) / 1e6:.2f} |" in line
    assert {row["budget"] for row in lines(tmp_path / "cheap.jsonl")} == {0.5, 0.25, 1.0}


def test_heads_are_scaled_to_the_model():
    from experiments.ablations.compresskv_masking import variants as masked
    from experiments.ablations.compresskv_table2 import scaled

    assert scaled(32) == {2: 2, 4: 4, 6: 6, 12: 12, 24: 24} and scaled(9) == {1: 4, 2: 6, 4: 12, 8: 24}
    labels = [variant.label for variant in masked(Setting(30, 3, 3, 64, 1.0, None))]
    assert [label for label in labels if "semantic" in label] == [f"{k} of 270, semantic" for k in (3, 5, 8)]
    assert "30 of 1024, classical" in [variant.label for variant in masked(Setting(32, 8, 4, 128, 1.0, None))]


#: Random weights copy no needle, and none of their heads is stable: what calibration would find is given.
GIVEN = ("compresskv", "heterocache")
#: One of each kind: masks, heads that select, allocators, mergers, components, and codebooks that are fitted first.
KINDS = ("compresskv_masking", "d2o_table4", "d2o_table8", "hcattention_table4b", "heterocache_table4")


@pytest.fixture(scope="module")
def other(talker):
    """A random model of another family, of the toy artefacts' shape, that reads text."""
    config = qwen3.config(toy_config(model_type="qwen3", vocab_size=257, max_position_embeddings=2048))
    return models.random(config, seed=3).replace(tokenizer=talker.tokenizer, name="random-qwen3")


@pytest.fixture
def ablate(other, monkeypatch, tmp_path, haystack_file):
    """`kvjax ablate NAME` on that model, with artefacts of two methods that random weights give no use; others are kept apart."""
    elsewhere = sketch("Of this text no word is in the haystack. " * 9)
    for method in GIVEN:
        save(replace(toy(method), model=model_facts(other), passages=elsewhere), tmp_path / method)
    monkeypatch.setattr(models, "load", lambda name, dtype="float32": other)
    monkeypatch.setattr(artefacts, "cache_folder", lambda: tmp_path)

    def run(name, *words):
        how = ["--model", "any", "--text", haystack_file, "--out", tmp_path / "out"]
        how += [word for method in GIVEN for word in ("--artefact", tmp_path / method)]
        assert cli.main([str(word) for word in ("ablate", name, *how, *words)]) == 0, name
        return lines(tmp_path / "out" / f"{name}.jsonl")

    return run


@pytest.mark.parametrize("name", ["compresskv_table3"])
def test_an_ablation_runs_on_a_model_of_another_family(ablate, name):
    rows = ablate(name, "--tasks", "ppl", "--lengths", 420, "--prompts", 1, "--budget", 0.5)
    assert [row["policy"] for row in rows] == ["full", "SnapKV", "+ SRH selection", "+ SRH selection + layer budgets"]
    assert {row["model"] for row in rows} == {"random-qwen3"} and rows[0]["table_bytes"] == 0 < rows[2]["table_bytes"]
    origins = [list(row.get("artefacts", ())) for row in rows]
    assert origins[:2] == [[], []] and all(found[0].startswith("compresskv of random-qwen3") for found in origins[2:])


def test_a_dry_run_tells_the_cost_and_measures_nothing(ablate, capsys, tmp_path):
    words = ("--tasks", "ppl", "--lengths", 420, "--budget", 0.5)
    asked = partial(ablate, "compresskv_table3", *words, "--prompts", 3, "--dry-run")
    with pytest.raises(FileNotFoundError):
        asked()  # no rows to read afterwards
    told = capsys.readouterr().out
    assert "12 rows to measure, 0 found" in told and "3 prefills of 1260 tokens" in told and "+ SRH selection at 0.5" in told
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_ablations_of_every_kind_run_on_a_model_of_another_family(ablate, other, name, tmp_path):
    """Artefacts that are not given are calibrated first, on the calibration split, and kept."""
    task, length = ("recall", 700) if name == "compresskv_masking" else ("ppl", 420)
    rows = ablate(name, "--tasks", task, "--lengths", length, "--prompts", 1, "--budget", 0.5, "--question", "seen")
    labels = {variant.label for variant in find(name).variants(setting(other.decoder, 0.5, None))}
    assert labels <= {row["policy"] for row in rows} | {"none", "no quantisation", "tau 1.0"}  # the full cache
    kept = [load(folder) for folder in (tmp_path / "artefacts").glob("*")]
    assert {artefact.data["split"] for artefact in kept} <= {"calibration"}
    assert bool(kept) == (name == "hcattention_table4b")


def test_artefacts_are_given_once_and_of_the_model(other, ablate, tmp_path):
    found = artefacts.given([tmp_path / "compresskv"], other)
    assert list(found) == ["compresskv"] and artefacts.Calibrated(other, found)("compresskv") is found["compresskv"]
    with pytest.raises(ValueError, match="given twice for compresskv"):
        artefacts.given([tmp_path / "compresskv"] * 2, other)
    with pytest.raises(ValueError, match="does not fit"):
        artefacts.given([BUILT_IN / "smollm2-135m" / "heterocache"], other)


def test_calibrations_are_made_smaller_for_smaller_models(other):
    for method in ("compresskv", "heterocache", "hcattention"):
        settings = artefacts.fitted_to(other, method, {})
        assert settings["length"] + settings.get("steps", 0) <= other.decoder.max_positions
    assert artefacts.fitted_to(other, "hcattention", {})["groups"] == 8
    many = artefacts.fitted_to(other, "hcattention", {"centroids": 2048, "groups": 4})
    assert many["samples"] * many["length"] >= 10 * 2048 and many["groups"] == 4


def test_calibrations_are_kept_by_weights_and_text(other):
    """Two models of one name and shape: fine-tuned, or a later checkpoint of one run."""
    tuned = other.replace(params=jax.tree.map(lambda x: x * 1.5, other.params))
    folders = [
        artefacts.Calibrated(lm, {}).folder("hcattention", {"groups": 8}, text)
        for lm, text in ((other, "a"), (tuned, "a"), (other, "b"), (other, "a"))
    ]
    assert folders[0] == folders[3] and len(set(folders)) == 3


def test_a_built_in_artefact_that_read_the_evaluated_text_is_passed_over(tmp_path, monkeypatch):
    """Whether it may be used is told by the text alone."""
    found = load(BUILT_IN / "smollm2-135m" / "heterocache")
    monkeypatch.setattr(artefacts, "resolve", lambda *words: replace(found, passages=sketch(TEXT)))
    named = models.random(qwen3.config(toy_config(model_type="qwen3"))).replace(name="smollm2-135m")
    assert [len(list(artefacts.Calibrated(named, {}, text)._ready("heterocache"))) for text in (TEXT, "No word of it.")] == [0, 1]
