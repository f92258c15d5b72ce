"""Damaged result files and strange words on the command line, drawn from a seed: a named line and a code, or a whole result."""

import json
import random
from pathlib import Path

import pytest

from experiments.report import markdown, tables
from experiments.report.comparison import compare
from experiments.report.inputs import gather
from experiments.report.reproduce import commands
from experiments.rows import RowFile
from experiments.traces import beside
from tests.damage import NAMED, STRANGE, bounded_memory, of_bytes, of_json, of_text, said
from tests.experiments.conftest import TEXT, row
from tests.experiments.test_experiments_report import rows, trace

RESULTS = Path(__file__).parents[2] / "experiments" / "results"
ORIGIN = dict(versions={"jax": "1"}, commit="ab", machine="m", text="t", seconds_per_token=0.1)


@pytest.fixture
def made():
    return [made | ORIGIN for made in rows()]


def lines(values) -> bytes:
    return "".join(json.dumps(value) + "\n" for value in values).encode()


def damaged_rows(made, draw):
    """The file with one row damaged, the same field of all of them, or a byte."""
    kind = draw.choice(["row", "row", "field", "bytes"])
    if kind == "bytes":
        data = lines(made)
        return of_bytes(data, draw, len(data))
    if kind == "field":
        name, value = draw.choice(list(made[0])), draw.choice(STRANGE)
        return lines([{**one, name: value} for one in made])
    at = draw.randrange(len(made))
    return lines([*made[:at], of_json(made[at], draw), *made[at + 1 :]])


def report(path):
    """All of a report but its pictures: whole rows, every table with the same cells in all its lines, commands."""
    found = gather([path])
    data = path.read_bytes()
    assert len(found.all_rows) == len(data[: data.rfind(b"\n") + 1].splitlines())
    for table in tables(found.all_rows):
        shown = [line.replace("\\|", "") for line in markdown(table).splitlines() if line.startswith("|")]
        assert len(shown) == 2 + len(table.lines) and len({line.count("|") for line in shown}) == 1
    compare(found.all_rows, "full")
    commands(found.all_rows, path)
    return found


def test_result_files(made, tmp_path):
    draw, path = random.Random(1), tmp_path / "rows.jsonl"
    count = {"named": 0, "whole": 0}
    for _ in range(600):
        path.write_bytes(damaged_rows(made, draw))
        try:
            with bounded_memory():
                report(path)
            count["whole"] += 1
        except NAMED as error:
            said(error)
            count["named"] += 1
    assert count["named"] > 300 and count["whole"] > 30


def test_result_files_that_are_resumed(made, tmp_path):
    """A sweep takes a damaged file for what it is, or leaves it as it was; what a kill tore off is cut, and nothing else."""
    draw, path, identity = random.Random(2), tmp_path / "rows.jsonl", row()
    for _ in range(300):
        data = damaged_rows(made, draw)
        path.write_bytes(data)
        whole = data[: data.rfind(b"\n") + 1]
        try:
            with bounded_memory(), RowFile(path, identity) as file:
                assert len(file) <= len(whole.splitlines()) and path.read_bytes() == whole
        except NAMED as error:
            said(error)
            assert path.read_bytes() in (data, whole)


def test_traces_and_benchmarks(made, tmp_path):
    draw, path = random.Random(3), tmp_path / "rows.jsonl"
    path.write_bytes(lines(made))
    drift = {"theta": 0.5, "w": 4, "first": 0, "pivots": [[0, 0]], "medians": [[0.1, None, 0.9]], "refreshes": [1]}
    whole, bench = trace(drift=drift), json.loads((RESULTS / "decode_8k.json").read_text())
    count = {"named": 0, "whole": 0}
    for number in range(300):
        target, value = (beside(path), whole) if number % 2 else (tmp_path / "bench.json", bench)
        target.write_bytes(of_text(value, draw).replace(b"\n", b" ") + b"\n")
        try:
            gather([path, *([target] if target.name == "bench.json" else [])])
            count["whole"] += 1
        except NAMED as error:
            said(error)
            count["named"] += 1
    assert count["named"] > 150 and count["whole"] > 10


def test_pages_of_what_is_whole(cli, made, tmp_path):
    """What passes as a result is drawn as well, whatever its names and numbers."""
    draw, path = random.Random(4), tmp_path / "rows.jsonl"
    drawn = 0
    while drawn < 6:
        path.write_bytes(damaged_rows(made, draw))
        with bounded_memory():
            code, _, err = cli("report", path, "--out", tmp_path / "out")
        drawn += code == 0
        assert code == 0 or (code == 2 and err.count("error: ") == 1 and "Traceback" not in err), err


WORDS = [
    "", "-1", "0", "1e23", "1" + "0" * 23, "nan", "inf", "abc", "None", "\ud800", "a\nb", "\x1b[31mx", ",", "=", ":", "snapkv:",
    "snapkv:window=-1", "snapkv:window=abc", "snapkv:pool=None", "9" * 5000, "2.5", "1e-300", "/no/file", "folder", "bytes",
    "empty", "text", "rows", "~nouser", "\0", "x" * 300, "[bold]", "{}", "--", "needle", "longbench/x/y", "full", "h2o",
    "4294967296", "True", "1,2", "1024", "0.5", "/dev/null", "/dev/zero",
]  # fmt: skip
COMMANDS = {
    ("generate", "--model", "toy", "--prompt", "abc", "--max-new-tokens", "2"):
        "--policy --budget --prompt --prompt-file --max-new-tokens --temperature --top-k --top-p --seed --dtype --json",
    ("sweep", "--model", "toy", "--out", "o", "--policies", "keydiff", "--budgets", "0.5", "--lengths", "420", "--prompts", "1",
     "--text", "text", "--dry-run"):
        "--out --policies --budgets --tasks --lengths --prompts --seed --question --text --dtype --prefills --json",
    ("report", "rows", "--out", "empty"): "--out --baseline --json",
    ("show", "--model", "toy", "--policy", "keydiff", "--budget", "0.5", "--prompt", "abc", "--out", "p"):
        "--policy --budget --prompt --prompt-file --out --dtype --json",
    ("ablate", "d2o_table4", "--out", "folder", "--text", "empty"):
        "--model --out --budget --tasks --question --lengths --prompts --seed --text --dtype",
    ("calibrate", "compresskv", "--model", "toy", "--out", "folder", "--text", "empty"): "--out --samples --length --set --seed",
    ("bench", "plan", "--length", "64"): "--length --model --policy --budget --card --new --groups --centroids --dtype --json",
    ("bench", "attention", "--shapes", "none"): "--impl --rounds --dtype",  # an empty --shapes would measure them all
}  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with files of several kinds."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "bytes").write_bytes(bytes(range(256)))
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "text").write_text(TEXT)
    (tmp_path / "rows").write_bytes(lines([row()]))
    return tmp_path


def test_words(cli, folder):
    draw, codes = random.Random(5), {0: 0, 2: 0}
    for _ in range(250):
        command = draw.choice(list(COMMANDS))
        argv, option, word = list(command), draw.choice(COMMANDS[command].split()), draw.choice(WORDS)
        if option in argv:
            argv[argv.index(option) + 1] = word
        else:
            argv += [option, word]
        with bounded_memory():
            code, _, err = cli(*argv)
        codes[code] += 1
        last = err.rstrip("\n").split("\n")[-1]
        assert "Traceback" not in err and err.count("error: ") == (code == 2), (argv, err)
        assert code == 0 or (last.startswith("error: ") and last.isprintable()), (argv, err)
    assert codes[2] > 140 and codes[0] > 10
