"""The command line on a toy model: output, exit codes, one-line reasons."""

import base64
import html
import json
import re
import sys

import numpy as np
import pytest

from experiments.kept.held import hold, policies_of
from experiments.pages.charts import library
from experiments.token_text import MOST, pieces
from tests.experiments.conftest import lines
from tests.experiments.pages import Loads


def test_generate_streams_text_and_says_the_bytes(cli, tmp_path):
    words = ["--prompt", "The fox. " * 10, "--max-new-tokens", 5, "--json", tmp_path / "g.json"]
    code, out, err = cli("generate", "--model", "toy", "--policy", "snapkv:window=8", "--budget", "0.5", *words)
    assert code == 0, err
    facts = json.loads((tmp_path / "g.json").read_text())
    assert out == facts["text"] + "\n" and len(facts["tokens"]) <= 5
    assert facts["kept_share"] == 0.5 and facts["full_bytes"] == 2 * 4 * 90 * 16 * 4
    assert "allocated" in err and "ms/token" in err


def test_a_policy_that_cuts_a_prompt_as_it_is_read_generates_and_is_shown(cli, talker, tmp_path):
    """PyramidInfer, of which no whole prefill can be compressed."""
    words = ["--prompt", "The fox. " * 10, "--max-new-tokens", 3, "--json", tmp_path / "g.json"]
    code, _, err = cli("generate", "--model", "toy", "--policy", "pyramid_infer:p=0.2,least=8", *words)
    facts = json.loads((tmp_path / "g.json").read_text())
    assert code == 0 and 0 < facts["kept_share"] < 1 and len(facts["tokens"]) <= 3, err
    cut, whole = hold(talker, talker.encode("The fox. " * 10), policies_of(["pyramid_infer:p=0.2,least=8", "full"], []))
    assert (cut.policy, whole.policy) == ("pyramid_infer:p=0.2,least=8", "full")
    assert cut.share == facts["kept_share"] and whole.share == 1


def test_sampling_repeats_with_its_seed(cli, tmp_path):
    def tokens(seed):
        words = ["--temperature", 1.5, "--top-k", 50, "--top-p", 0.9, "--seed", seed, "--json", tmp_path / "g.json"]
        code, _, err = cli("generate", "--model", "toy", "--prompt", "abc", "--max-new-tokens", 8, *words)
        assert code == 0, err
        return json.loads((tmp_path / "g.json").read_text())["tokens"]

    assert tokens(1) == tokens(1) != tokens(2)


def test_pieces_of_text_wait_for_whole_characters(talker):
    ids = talker.encode("aé漢 b")
    assert list(pieces(talker, ids)) == [("a", 1), ("é", 2), ("漢", 3), (" ", 1), ("b", 1)]
    assert list(pieces(talker, ids[:2])) == [("a", 1), ("\ufffd", 1)]  # the end is given as it is
    broken = [ids[1]] * (2 * MOST + 3)  # the first byte of é again and again: no character ever comes of it
    assert [count for _, count in pieces(talker, broken)] == [MOST, MOST, 3]


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
    assert len(lines(tmp_path / "rows.jsonl")) == 15 and "  keydiff at 40\n" in out
    code, out, err = cli(*sweep[:3], "--policies", "quest", *words[2:], *sweep[-4:], "--prompts", 1, "--dry-run")
    assert code == 0, err
    assert "  quest at 1.0, for it takes no budget\n" in out
    assert cli(*sweep, "--seed", "one")[0] == 2
    haystack_file.write_text(haystack_file.read_text() + "More.")
    for more in ((), ("--dry-run",)):
        code, _, err = cli(*sweep, *more)
        assert code == 2 and "has rows with prompts" in err


def test_show_writes_a_page_that_stands_alone(cli, talker, tmp_path):
    pytest.importorskip("vl_convert", reason="vl-convert-python is not installed: the extra `pages`")
    file, text = tmp_path / "prompt.txt", '<script>alert("x")</script> {{ title }} 漢字 & so on\n' * 3
    file.write_text(text)
    out = ["--out", tmp_path / "page.html", "--json", tmp_path / "p.json"]
    words = ["show", "--model", "toy", "--policy", "keydiff", "--policy", "snapkv:window=8", "--prompt-file", file]
    code, _, err = cli(*words, "--budget", 20, "--budget", "0.25", *out)
    assert code == 0, err
    page, facts = (tmp_path / "page.html").read_text(), json.loads((tmp_path / "p.json").read_text())
    body = page[: page.index('<script type="application/json"')]
    assert Loads(body).found == [] and "http" not in body.replace("http-equiv", "") and "default-src 'none'" in body
    panels = re.findall(r'<p class="tokens"[^>]*>(.*?)</p>', body, flags=re.S)
    spoken = [[html.unescape(piece) for piece in re.findall(r"<span[^>]*>(.*?)</span>", panel, flags=re.S)] for panel in panels]
    assert "漢" in spoken[0] and "\ufffd" not in page[: page.index("<script")]
    assert ["".join(one).replace("⏎", "") for one in spoken] == [text, text]
    assert "alert(" not in re.sub(r"<span.*?</span>", "", body)
    data = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])
    shaded = data["page"]
    for panel, policy, one in zip(panels, shaded["policies"], facts["policies"], strict=True):
        bits = np.unpackbits(np.frombuffer(base64.b64decode(policy["bits"]), np.uint8))
        mask = bits.reshape(shaded["layers"], shaded["heads"], -1)[..., : shaded["tokens"]]
        assert [[list(head.nonzero()[0]) for head in layer] for layer in mask] == one["kept"]
        edges, share = shaded["edges"], mask.mean((0, 1))
        want = [share[a:b].mean() for a, b in zip(edges, edges[1:], strict=False)]
        assert [float(s) for s in re.findall(r"--s:([\d.]+)", panel)] == pytest.approx(want, abs=1e-3)
        found = [row for row in data["rows"].values() if row["table"] == policy["table"]]
        assert [[row["layer"], row["head"], row["slots"]] for row in found] == [
            [layer, head, mask[layer, head].sum()] for layer in range(2) for head in range(2)
        ]
    assert [policy["name"] for policy in shaded["policies"]] == ["keydiff 20", "snapkv:window=8 0.25"]
    assert facts["policies"][0]["kept_share"] == pytest.approx(20 / facts["prompt_tokens"])
    assert str(facts["full_bytes"]) in body and body.count("<tr id=") == len(data["rows"]) == 2 * 2 * 2
    assert "--policy keydiff --policy snapkv:window=8 --budget 20 --budget 0.25" in body


def test_show_takes_one_policy_or_a_few_that_differ(cli, tmp_path):
    pytest.importorskip("vl_convert", reason="vl-convert-python is not installed: the extra `pages`")
    words = ["show", "--model", "toy", "--prompt", "The fox.", "--out", tmp_path / "page.html"]
    code, _, err = cli(*words, "--policy", "full")
    assert code == 0 and "What was kept: full</title>" in (tmp_path / "page.html").read_text(), err
    for more, reason in (
        (["--policy", "full"] * 2, "given twice"),
        (["--policy", "full", "--policy", "knorm", "--budget", "4", "--budget", "5", "--budget", "6"], "one --budget for all"),
        ([word for budget in range(5) for word in ("--policy", "knorm", "--budget", budget + 1)], "at most 4"),
    ):
        code, _, err = cli(*words, *more)
        assert code == 2 and reason in err and err.count("\n") == 1


def test_without_its_extra_show_says_so_at_once(cli, tmp_path, monkeypatch):
    library.cache_clear()
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    code, _, err = cli("show", "--model", "toy", "--policy", "full", "--prompt", "hello", "--out", tmp_path / "p.html")
    assert code == 2 and err.count("\n") == 1 and "pip install -e '.[pages]'" in err and not (tmp_path / "p.html").exists()


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
