"""`kvjax calibrate` on a toy model: prompts as they are said to be, artefacts that load, one-line reasons."""

import json

import numpy as np
import pytest

from experiments.calibrate import find, hcattention, names, needles
from experiments.calibrate.text import described, stretches
from experiments.commands.calibrate import parse_settings
from experiments.tasks.chat import encode_plain
from experiments.tasks.text import haystack
from kvjax.artefacts.artefact import load

SMALL = ["--samples", 2, "--length", 200, "--set", "groups=2", "--set", "centroids=8", "--set", "max_iter=3"]


@pytest.fixture
def ids(talker, haystack_file):
    return encode_plain(talker, haystack_file.read_text())


@pytest.fixture
def hcattention_words(haystack_file, tmp_path):
    return ["calibrate", "hcattention", "--model", "toy", "--text", haystack_file, "--out", tmp_path / "art"]


def test_hcattention_makes_an_artefact_of_the_model(cli, talker, hcattention_words, tmp_path):
    code, out, err = cli(*hcattention_words, *SMALL, "--json", tmp_path / "c.json")
    assert code == 0, err
    found, said = load(tmp_path / "art", "hcattention", talker), json.loads((tmp_path / "c.json").read_text())
    d = talker.decoder
    assert found.tables["codebook"].shape == (d.layers, d.heads, 2, 8, d.head_dim // 2)
    assert (found.settings["groups"], found.settings["length"], found.settings["batch"]) == (2, 200, 10_000)
    assert (found.data["samples"], found.data["tokens"]) == (2, 400)
    assert said["origin"] == found.origin and found.origin in out
    code, _, err = cli(*hcattention_words, *SMALL)
    assert code == 0 and load(tmp_path / "art").digest == found.digest, err


def test_what_is_in_the_way_is_not_replaced(cli, hcattention_words, tmp_path):
    (tmp_path / "art").mkdir()
    (tmp_path / "art" / "notes.txt").write_text("mine")
    code, _, err = cli(*hcattention_words, *SMALL)
    assert code == 2 and "holds no artefact" in err and (tmp_path / "art" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    "words, reason",
    [
        (["--set", "groups=3"], "groups must divide the head dimension 16, got 3"),
        (["--set", "groups=many"], "--set groups: expected int, got 'many'"),
        (["--set", "groups=2", "--set", "centroids=0"], "centroids must be 1 to 65536, got 0"),
        (["--set", "color=3"], "'color=3' is not one KEY=VALUE"),
        (["--set", "groups=2", "--set", "groups=4"], "--set: groups is given twice"),
        (["--samples", 2, "--set", "samples=3"], "--samples and --set samples=... were both given: say one of them"),
        (["--samples", 40, "--length", 200, "--set", "groups=2"], "40 samples of 200 tokens need 8000"),
        (["--length", 100_000, "--set", "groups=2"], "beyond the model's context"),
    ],
)
def test_bad_input_is_one_line(cli, hcattention_words, tmp_path, words, reason):
    code, _, err = cli(*hcattention_words, *words)
    assert code == 2 and reason in err and err.strip().count("\n") == 0
    assert not (tmp_path / "art").exists()


def test_an_unknown_method_lists_the_known(cli, tmp_path):
    code, _, err = cli("calibrate", "snapkv", "--model", "toy", "--out", tmp_path / "art")
    assert code == 2 and ", ".join(names()) in err


@pytest.mark.parametrize("method", names())
def test_every_method_has_settings_with_the_common_ones(method):
    assert {"samples", "length"} <= set(find(method).DEFAULTS)


def test_settings_keep_the_type_of_their_default():
    defaults = {"n": 1, "x": 0.5, "on": False}
    assert parse_settings("m", defaults, ["x=2", "on=true"]) == {"n": 1, "x": 2.0, "on": True}
    assert type(parse_settings("m", defaults, ["x=2"])["x"]) is float
    with pytest.raises(ValueError, match="expected int"):
        parse_settings("m", defaults, ["n=True"])


def test_stretches_do_not_overlap():
    got = stretches(list(range(100)), 3, 30)
    assert [len(s) for s in got] == [30] * 3 and len({i for s in got for i in s}) == 90


def test_stretches_are_spread_over_the_whole_text():
    """Three of 10 of 100 tokens begin 33 apart; where they fill the text, one ends where the next begins."""
    assert [s[0] for s in stretches(list(range(100)), 3, 10)] == [0, 33, 66]
    assert [s[0] for s in stretches(list(range(100)), 4, 25)] == [0, 25, 50, 75]
    with pytest.raises(ValueError, match="3 samples of 34 tokens need 102 tokens of text, there are 100"):
        stretches(list(range(100)), 3, 34)


def test_the_data_is_told_by_exactly_what_was_read():
    told = described([[1, 2], [3]], "here")
    assert (told["samples"], told["tokens"], told["source"]) == (2, 3, "here")
    assert len({described(x, "here")["sha256"] for x in ([[1, 2], [3]], [[1], [2, 3]], [[1, 2], [4]])}) == 3


def test_needles_lie_where_asked_and_their_answers_in_the_prompt(talker, ids):
    found = list(needles.runs(talker, ids, lengths=[420, 500], depths=[0.0, 0.5, 1.0], seed=0))
    assert len(found) == 3 * 2 * 3 and {len(run.prompt) for run in found} == {420, 500}
    for number, needle in enumerate(needles.NEEDLES):
        assert needle.sentence.startswith(" " + needle.cue) and needle.sentence == f" {needle.cue}{needle.answer}."
        starts = []
        for run in found[6 * number : 6 * number + 3]:
            text = talker.decode(run.prompt)
            assert text.endswith(needle.cue) and text.count(needle.answer) == 1
            assert talker.decode(run.answer) == needle.answer and talker.decode(run.stop[:1]) == "\n"
            starts.append(text.index(needle.sentence))
        assert starts[0] == 0 and starts == sorted(set(starts))
    again = list(needles.runs(talker, ids, lengths=[420, 500], depths=[0.0, 0.5, 1.0], seed=0))
    other = list(needles.runs(talker, ids, lengths=[420, 500], depths=[0.0, 0.5, 1.0], seed=1))
    assert again == found and [run.prompt for run in other] != [run.prompt for run in found]


def test_a_needle_goes_after_the_last_full_stop_before_its_depth(talker):
    text, needle = encode_plain(talker, "One two. Three four. Five"), encode_plain(talker, "!")
    place = lambda depth: talker.decode(needles.hide(talker, text, needle, depth))  # noqa: E731
    assert place(0.6) == "One two.! Three four. Five" and place(1.0) == "One two. Three four. Five!"
    assert place(0.2) == "One t!wo. Three four. Five" and place(0.0).startswith("!")


def test_lengths_are_spread_evenly():
    assert needles.spread(512, 2048, 4) == [512, 1024, 1536, 2048] and needles.spread(512, 2048, 1) == [2048]


def test_prompts_too_short_for_a_needle_are_refused(talker, ids):
    with pytest.raises(ValueError, match="too short for a needle"):
        list(needles.runs(talker, ids, lengths=[100], depths=[0.5], seed=0))
    with pytest.raises(ValueError, match="longer --text"):
        list(needles.runs(talker, ids[:300], lengths=[900], depths=[0.5], seed=0))


def test_compresskv_makes_an_artefact_of_the_model(cli, talker, haystack_file, tmp_path, monkeypatch):
    from experiments.calibrate import compresskv as calibration

    ranked = calibration.semantic_heads  # random weights copy nothing: every run counts here
    monkeypatch.setattr(calibration, "semantic_heads", lambda *a, **k: ranked(*a, success=lambda *words: True, **k))
    sizes = dict(shortest=420, lengths=1, depths=2, heads=2, steps=3, error_length=100, error_steps=2)
    words = ["calibrate", "compresskv", "--model", "toy", "--text", haystack_file, "--out", tmp_path / "art"]
    settings = [word for key, x in sizes.items() for word in ("--set", f"{key}={x}")]
    code, _, err = cli(*words, "--samples", 1, "--length", 420, *settings)
    assert code == 0, err
    found = load(tmp_path / "art", "compresskv", talker)
    layers, queries = talker.decoder.layers, talker.decoder.heads * talker.decoder.groups
    assert np.array_equal(np.sort(found.tables["srh"], 1), np.tile(np.arange(queries), (layers, 1)))
    assert found.tables["layer_score"].shape == (layers,) and found.tables["layer_score"].sum() == pytest.approx(1)
    assert found.tables["layer_error"].shape == (2, layers) and (found.tables["layer_error"] > 0).all()
    assert found.data["samples"] == 3 * 2 + 2 and str(haystack_file) in found.data["source"]


def test_a_model_that_copies_nothing_is_told(cli, haystack_file, tmp_path):
    words = ["calibrate", "compresskv", "--model", "toy", "--text", haystack_file, "--out", tmp_path / "art", "--samples", 1]
    small = ["--set", "shortest=420", "--set", "lengths=1", "--set", "depths=1", "--set", "steps=2", "--set", "error_length=100"]
    code, _, err = cli(*words, "--length", 420, *small)
    assert code == 2 and "none of 3 runs succeeded" in err and not (tmp_path / "art").exists()


def test_calibrating_is_repeatable(talker, haystack_file):
    settings = hcattention.DEFAULTS | dict(samples=2, length=200, groups=2, centroids=8, max_iter=3)
    how = dict(progress=lambda *at: None)
    one, two, other = (hcattention.calibrate(talker, haystack(haystack_file), settings, seed=s, **how) for s in (0, 0, 1))
    assert one.digest == two.digest != other.digest and one.settings["seed"] == 0


def test_heterocache_makes_an_artefact_of_the_model(cli, talker, haystack_file, tmp_path):
    words = ["calibrate", "heterocache", "--model", "toy", "--text", haystack_file, "--out", tmp_path / "art", "--samples", 2]
    code, _, err = cli(*words, "--length", 100, "--set", "k=16", "--set", "steps=3", "--set", "least=0.1")
    assert code == 0, err
    found, d = load(tmp_path / "art", "heterocache", talker), talker.decoder
    assert {name: x.shape for name, x in found.tables.items()} == dict.fromkeys(
        ("role", "alloc_ratio", "stability", "cluster"), (d.layers, d.heads)
    )
    assert set(found.tables["role"].ravel()) <= {1, 2, 3, 4} and found.settings["least"] == 0.1
    assert (found.data["samples"], found.data["tokens"]) == (2, 200)


@pytest.mark.parametrize(
    "words, reason",
    [
        (["--length", 100], "raise --length above k"),
        (["--set", "theta_sim=2"], "theta_sim is an overlap in [0, 1], got 2.0"),
        (["--set", "steps=100000"], "lower --length"),
        (["--set", "kappa=0"], "kappa must be at least 1"),
    ],
)
def test_heterocache_refuses_what_says_nothing(cli, haystack_file, tmp_path, words, reason):
    code, _, err = cli("calibrate", "heterocache", "--model", "toy", "--text", haystack_file, "--out", tmp_path / "art", *words)
    assert code == 2 and reason in err and not (tmp_path / "art").exists()


READ = [
    ("kvquant", ["kept=0.9"], {}),
    ("coupled_quantization", ["bits=4", "max_iter=2"], {}),
    ("kvtc", ["ratios=(4,8)", "measured=50"], {"ratio": 8}),
    ("fasa", ["count=3", "tokens=8", "queries=4"], {"tokens": 12}),
    ("infinigen", [], {"part": 0.5}),
]


@pytest.mark.parametrize("method, changes, arguments", READ)
def test_methods_that_read_what_is_cached(cli, talker, haystack_file, tmp_path, method, changes, arguments):
    """An artefact of the model that the method takes."""
    import kvjax

    words = ["calibrate", method, "--model", "toy", "--text", haystack_file, "--out", tmp_path / "art"]
    code, _, err = cli(*words, "--samples", 2, "--length", 60, *(word for change in changes for word in ("--set", change)))
    assert code == 0, err
    found = load(tmp_path / "art", method, talker)
    policy = getattr(kvjax.methods, method)(artefact=found, **arguments)
    cache = kvjax.compress(kvjax.prefill(talker, list(range(40)), needs=policy), policy)
    assert found.data["tokens"] == 120 and cache.nbytes > 0


@pytest.mark.parametrize(
    "method, change, reason",
    [
        ("kvquant", "kept=2.0", "kept is a share"),
        ("kvquant", "each=8", "1 outlier or more"),
        ("coupled_quantization", "channels=3", "channels must divide the head dimension 16"),
        ("coupled_quantization", "bits=3", "fill bytes"),
        ("coupled_quantization", "max_iter=0", "1 update or more"),
        ("kvtc", "ratios=(0,)", "integers from 1 to 15"),
        ("fasa", "count=9", "count is 1 to 8"),
        ("fasa", "count=8", "tokens must be 1 to 59"),
        ("kvtc", "sinks=59", "2 or more of them after the sinks"),
    ],
)
def test_settings_that_fit_no_codec(cli, haystack_file, tmp_path, method, change, reason):
    words = ["calibrate", method, "--model", "toy", "--text", haystack_file, "--out", tmp_path / "art", "--length", 60]
    code, _, err = cli(*words, "--set", change)
    assert code == 2 and reason in err and not (tmp_path / "art").exists()


def test_minference_makes_a_pattern_for_every_query_head(cli, talker, haystack_file, tmp_path):
    words = ["calibrate", "minference", "--model", "toy", "--text", haystack_file, "--out", tmp_path / "art", "--length", 200]
    code, _, err = cli(*words, "--samples", 2)
    assert code == 2 and "reads one sample" in err and not (tmp_path / "art").exists()
    code, _, err = cli(*words, "--set", "scale=0.0")
    assert code == 2 and "scale must be above 0" in err and not (tmp_path / "art").exists()
    assert cli(*words, "--set", "scale=0.25")[0] == 0
    found, d = load(tmp_path / "art", "minference", talker), talker.decoder
    assert found.tables["patterns"].shape == (d.layers, d.heads * d.groups, 3)
    assert found.settings["first"] == 100 and found.data["tokens"] == 200
    assert found.settings["candidates"][0] == "AShape(first=25, recent=200)"
