"""Tables and figures from rows made by hand."""

import json
import math

import pytest

from experiments.report import markdown, tables
from experiments.stats import average, proportion
from tests.experiments.conftest import row


def rows():
    made = []
    for i in range(4):
        full = dict(policy="full", policy_repr="F", budget=1.0, kept_share=1.0, allocated_bytes=10_200_000, prompt=i)
        made += [row(**full), row(prompt=i, score=float(i < 3))]
        nll = dict(task="ppl", mode="-", prompt=i)
        made += [row(**full | nll, nll=3.0 + i), row(**nll, nll=3.1 + i)]
    for r in made:
        if r["task"] == "ppl":
            del r["score"]
    return made


def test_bytes_stand_beside_the_share_and_both_tasks_beside_each_other():
    (table,) = tables(rows())
    text = markdown(table)
    assert "| policy | budget | kept | device MB | host MB | needle unseen, score % | ppl, nats/token |" in text
    assert "| full | - | 100.0% | 10.20 | 0.00 | 100 [51, 100] n=4 | 4.500 ± 2.054 n=4 |" in text
    assert "| snapkv | 0.5 | 50.0% | 5.10 | 0.00 | 75 [30, 95] n=4 | 4.600 (+0.100 ± 0.000) n=4 |" in text


def test_the_same_rows_twice_count_once():
    assert tables(rows() + rows()) == tables(rows())


def test_lengths_have_tables_of_their_own_and_prompts_do_not_mix():
    assert len(tables(rows() + [row(length=128)])) == 2
    with pytest.raises(ValueError, match="different prompts"):
        tables(rows() + [row(prompts="1:other", prompt=9)])
    with pytest.raises(ValueError, match="no result rows"):
        tables([])


def test_intervals():
    assert proportion([True] * 10).low == pytest.approx(0.7225, abs=1e-3)
    assert average([1.0, 2.0, 3.0]).high == pytest.approx(2 + 4.303 / math.sqrt(3), abs=1e-3)
    assert math.isnan(average([1.0]).high)


def test_report_writes_table_figure_and_json(cli, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(r) + "\n" for r in rows()))
    code, out, err = cli("report", file, "--out", tmp_path / "out", "--json", tmp_path / "r.json")
    assert code == 0, err
    assert "| snapkv | 0.5 |" in out and (tmp_path / "out" / "table.md").read_text() in out
    assert (tmp_path / "out" / "toy-float32-64.png").read_bytes().startswith(b"\x89PNG")
    plain = json.loads((tmp_path / "r.json").read_text())
    assert plain["tables"][0]["lines"][1]["scores"]["needle unseen"]["estimate"]["mean"] == 0.75


def test_one_prompt_alone_still_reports(cli, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(r) + "\n" for r in rows() if r["prompt"] == 0))
    code, out, err = cli("report", file, "--out", tmp_path, "--json", tmp_path / "r.json")
    assert code == 0, err
    assert "| 3.100 (+0.100) n=1 |" in out and "| 3.000 n=1 |" in out


def test_report_of_something_else_is_one_line(cli, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("hello\n")
    code, _, err = cli("report", file, "--out", tmp_path)
    assert code == 2 and err.count("\n") == 1 and "line 1 is not a result row" in err
