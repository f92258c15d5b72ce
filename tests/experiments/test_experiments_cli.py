"""The command line on a toy model: output, exit codes, one-line reasons."""

import base64
import json
import re

import numpy as np
import pytest

from experiments.commands.generate import text_pieces
from tests.experiments.conftest import lines


def test_generate_streams_text_and_says_the_bytes(cli, tmp_path):
    words = ["--prompt", "The fox. " * 10, "--max-new-tokens", 5, "--json", tmp_path / "g.json"]
    code, out, err = cli("generate", "--model", "toy", "--policy", "snapkv:window=8", "--budget", "0.5", *words)
    assert code == 0, err
    facts = json.loads((tmp_path / "g.json").read_text())
    assert out == facts["text"] + "\n" and len(facts["tokens"]) <= 5
    assert facts["kept_share"] == 0.5 and facts["full_bytes"] == 2 * 4 * 90 * 16 * 4
    assert "allocated" in err and "ms/token" in err


def test_sampling_repeats_with_its_seed(cli, tmp_path):
    def tokens(seed):
        words = ["--temperature", 1.5, "--top-k", 50, "--top-p", 0.9, "--seed", seed, "--json", tmp_path / "g.json"]
        code, _, err = cli("generate", "--model", "toy", "--prompt", "abc", "--max-new-tokens", 8, *words)
        assert code == 0, err
        return json.loads((tmp_path / "g.json").read_text())["tokens"]

    assert tokens(1) == tokens(1) != tokens(2)


def test_pieces_of_text_wait_for_whole_characters(talker):
    ids = talker.encode("aé漢 b")
    pieces = list(text_pieces(talker, ids))
    assert "".join(pieces) == "aé漢 b" and pieces == ["a", "é", "漢", " ", "b"]
    assert "".join(text_pieces(talker, ids[:2])) == talker.decode(ids[:2])


def test_sweep_resumes_and_reports(cli, tmp_path, haystack_file):
    words = ["--policies", "snapkv:window=8,keydiff", "--budgets", "0.5,40", "--lengths", "420", "--text", haystack_file]
    sweep = ["sweep", "--model", "toy", *words, "--out", tmp_path / "rows.jsonl", "--json", tmp_path / "s.json"]
    code, _, err = cli(*sweep, "--prompts", 1, "--question", "both")
    assert code == 0, err
    assert json.loads((tmp_path / "s.json").read_text())["measured"] == 3 * 5
    code, out, _ = cli(*sweep, "--prompts", 1, "--question", "both")
    assert code == 0 and out.startswith("0 rows measured, 15 found")
    assert len(lines(tmp_path / "rows.jsonl")) == 15
    code, out, _ = cli("report", tmp_path / "rows.jsonl", "--out", tmp_path)
    assert code == 0 and "needle unseen" in out and "needle seen" in out and "ppl" in out
    code, out, _ = cli(*sweep, "--prompts", 1, "--seed", "0,3", "--dry-run")
    assert code == 0 and "10 rows to measure, 10 found" in out and "2 prefills of 840 tokens" in out
    assert len(lines(tmp_path / "rows.jsonl")) == 15
    assert cli(*sweep, "--seed", "one")[0] == 2
    haystack_file.write_text(haystack_file.read_text() + "More.")
    for more in ((), ("--dry-run",)):
        code, _, err = cli(*sweep, *more)
        assert code == 2 and "has rows with prompts" in err


def test_show_writes_a_page_that_stands_alone(cli, talker, tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_text('<script>alert("x")</script> [[DATA]] & so on\n' * 3)
    out = ["--out", tmp_path / "page.html", "--json", tmp_path / "p.json"]
    code, _, err = cli("show", "--model", "toy", "--policy", "keydiff", "--budget", 20, "--prompt-file", file, *out)
    assert code == 0, err
    page, facts = (tmp_path / "page.html").read_text(), json.loads((tmp_path / "p.json").read_text())
    assert "alert(" not in re.sub(r"<span[^>]*>(.*?)</span>", "", page, flags=re.S)
    assert "http" not in page.replace("http-equiv", "") and "src=" not in page and page.count("<script") == 2
    assert str(facts["allocated_bytes"]) in page and str(facts["full_bytes"]) in page and "budget</dt><dd>20" in page
    data = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])
    bits = np.unpackbits(np.frombuffer(base64.b64decode(data["bits"]), np.uint8))
    mask = bits.reshape(data["layers"], data["heads"], -1)[..., : data["tokens"]]
    assert mask.sum() == 20 * 2 * 2
    assert [[list(head.nonzero()[0]) for head in layer] for layer in mask] == facts["kept"]
    shades = [float(s) for s in re.findall(r"--s:([\d.]+)", page)]
    assert shades == pytest.approx(mask.mean((0, 1)), abs=1e-3)


BAD = [
    (["generate", "--model", "toy", "--policy", "nope", "--prompt", "x"], "unknown policy 'nope'"),
    (["generate", "--model", "toy", "--budget", "1.5", "--prompt", "x"], "budget '1.5'"),
    (["generate", "--model", "toy", "--budget", "0", "--prompt", "x"], "must be positive"),
    (["generate", "--model", "toy"], "exactly one of --prompt and --prompt-file"),
    (["generate", "--model", "toy", "--prompt", " "], "the prompt is empty"),
    (["generate", "--model", "toy", "--prompt-file", "/no/file"], "/no/file"),
    (["generate", "--model", "toy", "--prompt", "x", "--top-p", "2", "--temperature", "1"], "top_p"),
    (["generate", "--model", "toy", "--prompt", "x" * 2000], "2000 tokens"),
    (["generate", "--model", "toy", "--prompt", "x", "--max-new-tokens", "0"], "max-new-tokens"),
    (["generate", "--prompt", "x"], "--model"),
    (["sweep", "--model", "toy", "--policies", "full", "--budgets", "1", "--out", "/dev/null/x.jsonl"], "/dev/null/x.jsonl"),
    (["sweep", "--model", "t", "--policies", "full", "--budgets", "1", "--out", "x", "--tasks", "mmlu"], "unknown task"),
    (["sweep", "--model", "t", "--policies", "full", "--budgets", "1", "--out", "x", "--lengths", "1k"], "'1k'"),
    (["sweep", "--model", "t", "--policies", "full", "--budgets", ",", "--out", "x"], "--budgets is empty"),
    (["sweep", "--model", "t", "--policies", "full", "--budgets", "1", "--out", "x", "--question", "no"], "--question"),
    (["report", "/no/rows.jsonl", "--out", "x"], "/no/rows.jsonl"),
    (["show", "--model", "toy", "--policy", "full", "--prompt", "hello", "--out", "/dev/null/page.html"], "/dev/null/page.html"),
    (["bench", "attention", "--shapes", "round"], "no shape's name has 'round'"),
    (["bench", "decode", "--context", "99999999"], "beyond the"),
    (["bench", "attention", "--dtype", "int3"], "int3"),
    (["bench"], "Missing command"),
    (["frobnicate"], "frobnicate"),
]


@pytest.mark.parametrize("argv, reason", BAD)
def test_bad_input_is_one_line_and_a_code(cli, haystack_file, argv, reason):
    text = ["--text", haystack_file] if argv[0] == "sweep" or argv[:2] == ["bench", "decode"] else []
    code, _, err = cli(*argv, *text)
    assert code == 2
    assert err.startswith("error: ") and err.count("\n") == 1 and reason in err and "Traceback" not in err


def test_a_full_disk_is_one_line(cli, haystack_file):
    words = ["--policies", "keydiff", "--budgets", "40", "--lengths", "420", "--prompts", 1, "--text", haystack_file]
    code, _, err = cli("sweep", "--model", "toy", *words, "--out", "/dev/full")
    assert code == 2 and "error: cannot write /dev/full: No space left on device" in err and "Traceback" not in err


@pytest.mark.parametrize("command", ["generate", "sweep", "report", "show", "bench", None])
def test_help_is_there(cli, command):
    code, out, _ = cli(*([command] if command else []), "--help")
    assert code == 0 and "Usage: kvjax" in out
