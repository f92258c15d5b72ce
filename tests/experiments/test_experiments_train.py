"""`kvjax train` on a toy model: data as they are said to be, apart from evaluated texts, artefacts that load, one-line reasons."""

import json

import jax
import numpy as np
import pytest

import kvjax
from experiments import text_splits as texts
from experiments.commands import train as command
from experiments.policies import parse_policy
from experiments.tasks.text import Haystack, haystack
from experiments.train import find, names, recalled
from experiments.train.data import find as find_data
from experiments.train.data import kinds, passkeys
from experiments.train.random_model import random_model
from kvjax.artefacts.artefact import Artefact, load
from kvjax.train import Learner
from models.tokenizer import Tokenizer
from tests.method_cases import surrogate_gate

PROSE = "\n\n".join(f"Paragraph {i} of {i * 7} tells of a ship that sailed in the year {1500 + i}." for i in range(200))


@pytest.fixture
def evaluated(monkeypatch):
    """The haystack of the tasks, without a download."""
    found = Haystack("Nothing of this is in any other text. " * 20, "evaluated")
    monkeypatch.setattr(texts, "haystack", lambda path=None: found if path is None else haystack(path))
    return found


@pytest.fixture
def prose(tmp_path):
    path = tmp_path / "prose.txt"
    path.write_text(PROSE)
    return path


def test_splits_are_apart_and_told_by_words_alone(prose, evaluated, tmp_path):
    found = texts.splits(prose)
    parts = {name: found[name].text.split("\n\n") for name in texts.SPLITS}
    assert len(set().union(*map(set, parts.values()))) == sum(map(len, parts.values())) == 200
    assert 20 <= len(parts["held-out"]) <= 60 and 20 <= len(parts["calibration"]) <= 60
    longer = tmp_path / "longer.txt"
    longer.write_text(PROSE.replace("\n\n", "  \n\n\n\n") + "\n\nOne more paragraph.")
    again = texts.splits(longer)
    for name in texts.SPLITS:
        assert set(parts[name]) <= set(again[name].text.split("\n\n"))
    assert found["train"].digest != found["held-out"].digest and found["train"].avoided == evaluated.digest


def test_paragraphs_of_evaluated_texts_are_left_out(prose, evaluated):
    paragraphs = PROSE.split("\n\n")
    inside = Haystack("Before it. " + " ".join(paragraphs[17].split()[:12]) + " and after it.", "evaluated")
    found = texts.splits(prose, evaluated=inside)
    assert found["train"].dropped == 1 and paragraphs[17] not in "".join(split.text for split in found.values())
    other = Haystack(" ".join(paragraphs[17].split()[:11]), "evaluated")
    assert texts.splits(prose, evaluated=other)["train"].dropped == 0
    with pytest.raises(ValueError, match="no calibration paragraphs apart from"):
        texts.splits(prose, evaluated=Haystack(PROSE, "all of it"))


def test_the_default_text_is_on_every_disk_and_shares_nothing_with_the_essays():
    text = texts.documentation()
    assert len(text) > 500_000 and "statement" in text
    assert {texts.split_of(paragraph) for paragraph in text.split("\n\n")[:50]} == set(texts.SPLITS)


@pytest.mark.parametrize("kind", kinds())
def test_every_kind_makes_labelled_texts_that_repeat_with_their_seed(talker, kind):
    make = find_data(kind).examples
    how = dict(count=3, length=420)
    one, two, other = (make(talker, PROSE, seed=seed, **how) for seed in (0, 0, 1))
    assert one == two and len(one) == 3 and (one != other or kind in ("text", "answers"))
    for ids, label in one:
        assert len(ids) == len(label) <= 420 and any(label) and not label[0]


def test_an_answer_is_the_models_own(talker):
    ids, label = find_data("answers").examples(talker, PROSE, count=2, length=80, seed=0)[1]
    prompt = list(ids[:60])
    assert label == (False,) * 60 + (True,) * (len(ids) - 60)
    out = kvjax.generate(talker, prompt, kvjax.methods.full(), max_new_tokens=20)
    assert list(ids[60:]) == [int(i) for i in out.tokens[0]]


def test_an_answer_ends_where_the_model_ends_it(talker):
    """Beside one that goes on."""
    make, how = find_data("answers").examples, dict(count=2, length=80, seed=0)
    one, two = (list(ids[60:]) for ids, _ in make(talker, PROSE, **how))

    def cut(answer, ending):
        return answer[: answer.index(ending) + 1] if ending in answer else answer

    ending = next(i for i in (*one, *two) if len(cut(one, i)) != len(cut(two, i)))
    made = make(talker.replace(tokenizer=Tokenizer(talker.tokenizer.inner, (ending,))), PROSE, **how)
    assert [list(ids[60:]) for ids, _ in made] == [cut(one, ending), cut(two, ending)]
    assert all(len(ids) == len(label) and sum(label) == len(ids) - 60 for ids, label in made)


def test_passkeys_are_hidden_once_and_repeated_in_the_order_they_are_asked(talker):
    for ids, label in passkeys.examples(talker, PROSE, count=4, length=700, seed=3):
        text = talker.decode(list(ids))
        spans = talker.decode([i for i, mine in zip(ids, label, strict=True) if mine])
        answers = [answer.strip() for answer in spans.split(".") if answer.strip()]
        assert len(answers) == 4 and all(len(answer.split()) >= 2 and text.count(answer) == 2 for answer in answers)
        firsts, ends = ([find(answer) for answer in answers] for find in (text.index, text.rindex))
        assert firsts == sorted(firsts) and ends == sorted(ends) and max(firsts) < text.index("All passkeys") < min(ends)
        assert not any(label[: text.index("All passkeys")])


def test_what_a_trained_model_recalls_is_asked_of_texts_it_did_not_read(talker, evaluated):
    """Of one seed and length: training takes other passkeys, from other paragraphs."""
    read = find_data("passkeys").examples(talker, texts.splits()["train"].text, count=4, length=420, seed=0)
    asked = recalled.anew(talker, "passkeys", count=4, length=420, seed=0)

    def answers(examples):
        return {talker.decode([i for i, mine in zip(ids, label, strict=True) if mine]) for ids, label in examples}

    assert answers(read).isdisjoint(answers(asked)) and len(answers(asked)) == 4


def test_passkeys_grow_with_the_text():
    largest = {length: next(passkeys.sizes(length)) for length in (160, 512, 32_000)}
    assert largest == {160: (1, 15), 512: (3, 16), 32_000: (10, 32)}
    assert list(passkeys.sizes(512))[-3:] == [(3, 2), (2, 2), (1, 2)]


def test_one_of_several_keys_is_asked_for(talker):
    asked = set()
    for ids, label in find_data("keys").examples(talker, PROSE, count=8, length=420, seed=0):
        text = talker.decode(list(ids))
        answer = talker.decode([i for i, mine in zip(ids, label, strict=True) if mine]).strip(" .")
        assert text.count("secret number") == 5 and text.count(answer) == 2 and text.endswith(f" is {answer}.")
        asked.add([part[:7] for part in text.split(" is ") if part[:7].isdecimal()].index(answer))
    assert len(asked) > 1


@pytest.mark.parametrize("kind", ["passkeys", "keys"])
def test_texts_too_short_for_what_is_hidden_are_refused(talker, kind):
    with pytest.raises(ValueError, match="change --length"):
        find_data(kind).examples(talker, PROSE, count=1, length=100, seed=0)
    with pytest.raises(ValueError, match="change --length"):
        find_data(kind).examples(talker, "A few words.", count=1, length=420, seed=0)


@pytest.mark.parametrize("method", names())
def test_every_method_has_a_learner_with_its_settings(method):
    known = find(method)
    made = known.learner(known.DEFAULTS, None)
    assert isinstance(made, Learner) and made.method == method and known.DATA in kinds()
    assert made.budget == (128 if method in ("lococo", "trim_kv") else type(made)().budget), "less than a text of 512 tokens"
    if method in ("attention_gate", "dmc", "dms", "kvzap", "neural_garbage_collection", "stochastic_kv_routing"):
        with pytest.raises(ValueError, match="leave --budget out"):
            known.learner(known.DEFAULTS, 300)
    else:
        assert known.learner(known.DEFAULTS, 300).budget == 300
    assert all(getattr(made, name) == x for name, x in known.DEFAULTS.items() if name != "recent")


SMALL = ["--data", "text", "--length", 64, "--samples", 4, "--steps", 4, "--every", 2, "--held-out", 2]
TRIM = ["trim_kv", *SMALL, "--budget", 8, "--set", "hidden=8", "--set", "bias=4.0", "--set", "rate=0.01"]


def test_train_makes_an_artefact_that_a_method_takes(cli, talker, prose, evaluated, tmp_path):
    words = ["train", *TRIM, "--model", "toy", "--text", prose, "--out", tmp_path / "gate", "--json", tmp_path / "t.json"]
    code, out, err = cli(*words, "--half")
    assert code == 0, err
    found, said = load(tmp_path / "gate", "trim_kv", talker), json.loads((tmp_path / "t.json").read_text())
    assert found.tables["up.kernel"].shape == (2, 64, 8) and found.tables["up.kernel"].dtype == np.float16
    settings = {"budget": 8, "steps": 4, "seed": 0, "length": 64, "kvjax": kvjax.__version__}
    assert settings.items() <= found.settings.items()
    assert (found.data["split"], found.data["avoided"], found.data["kind"]) == ("train", evaluated.digest, "text")
    assert said["origin"] == found.origin and found.origin in out
    assert set(said["held_out"]) == {"before", "after"} and "held-out, after: loss" in out
    assert "loss" in err and "kept" in err and "left" in err
    spec = f"trim_kv:artefact={tmp_path / 'gate'},buffer=2"
    code, out, err = cli("generate", "--model", "toy", "--policy", spec, "--budget", "12", "--prompt", "The fox. " * 8)
    assert code == 0, err


def test_a_run_is_taken_up_where_asked_and_not_by_chance(cli, talker, prose, evaluated, tmp_path):
    words = ["train", *TRIM, "--model", "toy", "--text", prose, "--out", tmp_path / "gate"]
    assert cli(*words)[0] == 0
    first = load(tmp_path / "gate")
    code, _, err = cli(*words)
    assert code == 2 and "holds a run already" in err
    code, _, err = cli(*words, "--resume")
    assert code == 0 and load(tmp_path / "gate").digest == first.digest, err
    code, _, err = cli(*words, "--resume", "--seed", 1)
    assert code == 2 and "seed: 0 there, 1 asked" in err


@pytest.mark.parametrize("sizes, said", [(["--budget", 512], "of 512 tokens fit the 512"), ([], "of 12 tokens fit the 128")])
def test_gates_that_nothing_would_be_taught_are_not_trained(cli, evaluated, tmp_path, sizes, said):
    """Of 64 ids seven are keys: six pairs and three questions, 12 tokens whatever --length asks for."""
    code, out, err = cli("train", "trim_kv", "--model", "random:layers=1", "--data", "recall", *sizes, "--out", tmp_path / "gate")
    assert code == 2 and said in err and "smaller budget" in err and not out and not (tmp_path / "gate").exists()


def test_duo_attention_learns_its_alphas(cli, talker, prose, evaluated, tmp_path):
    words = ["train", "duo_attention", "--model", "toy", "--text", prose, "--out", tmp_path / "duo"]
    code, _, err = cli(*words, *SMALL, "--budget", 12, "--set", "sinks=2")
    assert code == 0, err
    found = load(tmp_path / "duo", "duo_attention", talker)
    assert found.tables["alpha"].shape == (2, 2) and (found.settings["sinks"], found.settings["recent"]) == (2, 10)
    assert (found.tables["alpha"] < 1).any()


GATES = {
    "attention_gate": ["--set", "parts=2", "--set", "width=4"],
    "kvzap": ["--set", "hidden=0", "--set", "system=2"], "dms": ["--set", "window=16", "--set", "rate=0.001"],
    "lookahead_kv": ["--data", "answers", "--set", "tokens=4", "--set", "rank=2"],
    "dmc": ["--set", "paths=('attention.q','attention.k')"], "less": ["--budget", 12, "--set", "hidden=16"],
    "lococo": ["--budget", 8, "--set", "chunk=16", "--set", "width=5"],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("method", GATES)
def test_train_makes_gates_that_their_methods_take(cli, talker, prose, evaluated, tmp_path, method):
    words = ["train", method, *SMALL, *GATES[method], "--model", "toy", "--text", prose, "--out", tmp_path / "gate"]
    code, out, err = cli(*words, "--json", tmp_path / "t.json")
    assert code == 0, err
    found, said = load(tmp_path / "gate", method, talker), json.loads((tmp_path / "t.json").read_text())
    assert set(said["held_out"]) == {"before", "after"} and found.origin in out
    assert found.settings.items() >= {"accumulated": 1, "parts": 2, "width": 4}.items() or method != "attention_gate"
    spec, slots = f"{method}:artefact={tmp_path / 'gate'}", found.settings["budget"]
    if isinstance(slots, int) or method == "dmc":
        assert parse_policy(spec, slots).policy  # served in tests/train
        return
    code, out, err = cli("generate", "--model", "toy", "--policy", spec, "--prompt", "The fox. " * 8)
    assert code == 0, err


RANDOM = "random:layers=2,width=32,heads=2,hidden=32,vocab=24"
#: What trains a model: settings, and ways to serve the result.
MODELS = {"stochastic_kv_routing": (["rate=0.01"], 3), "neural_garbage_collection": (["first=4", "window=2", "rollouts=2"], 3)}


def test_pairs_are_told_then_half_of_them_asked(talker):
    """v keys and v values of (v + 1)² - 1 ids: a pair is key · v + value."""
    lm, keys = random_model(RANDOM), 4
    for kind in ("recall", "marked"):
        for ids, label in find_data(kind).examples(lm, "train", count=6, length=8, seed=0):
            told, asked, answers = ids[:4], ids[4::2], ids[5::2]
            value = {pair // keys: pair % keys for pair in told}
            assert label == (False,) * 5 + (True, False, True) and len(value) == 4
            assert [value[key - 16] for key in asked] == [answer - 20 for answer in answers]
            assert kind == "recall" or all(key - 16 < 2 for key in asked)
        one, other = (find_data(kind).examples(lm, split, count=6, length=8, seed=0) for split in ("train", "held-out"))
        assert one != other
    with pytest.raises(ValueError, match="change --length"):
        find_data("recall").examples(lm, "train", count=1, length=3, seed=0)


def test_a_random_model_is_what_its_name_says():
    lm = random_model("random:layers=2,width=32,heads=2,seed=1")
    assert (lm.decoder.layers, lm.decoder.config.width, lm.decoder.head_dim, lm.decoder.vocab) == (2, 32, 16, 64)
    assert lm.name == "random:layers=2,width=32,heads=2,seed=1" and lm.tokenizer is None
    with pytest.raises(ValueError, match="3 heads do not divide a width of 64"):
        random_model("random:heads=3")
    with pytest.raises(ValueError, match="'depth=3' is not one KEY=VALUE"):
        random_model("random:depth=3")


@pytest.mark.slow
@pytest.mark.parametrize("method", MODELS)
def test_a_model_is_trained_from_scratch_and_served(cli, tmp_path, method):
    (changes, ways), folder = MODELS[method], tmp_path / "made"
    words = ["train", method, "--model", RANDOM, "--length", 8, "--samples", 16, "--steps", 4, "--every", 2, "--held-out", 2]
    code, _, err = cli(*words, *(x for change in changes for x in ("--set", change)), "--out", folder)
    assert code == 0, err
    recalled.main([folder], texts=4, thin=1, json_file=tmp_path / "r.json", picture=tmp_path / "r.png")
    run = json.loads((tmp_path / "r.json").read_text())["runs"]["made"]
    assert len(run["served"]) == ways and [line["step"] for line in run["log"]] == [0, 1, 2, 3]
    first, half, *_ = run["served"].values()
    positions = {"stochastic_kv_routing": 0, "neural_garbage_collection": 4}[method]  # of slots that others were evicted beside
    assert first["answers"] == 8 and half["bytes_a_token"] == first["bytes_a_token"] / 2 + positions
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "words, reason",
    [
        (["snapkv"], f"nothing to train for 'snapkv'; known: {', '.join(names())}"),
        (["trim_kv", "--data", "dreams"], "no data of kind 'dreams'; known: answers, keys, marked, passkeys, recall, text"),
        (["trim_kv", "--set", "hidden=many"], "--set hidden: expected int"),
        (["trim_kv", "--set", "colour=3"], "'colour=3' is not one KEY=VALUE"),
        (["duo_attention", "--length", 300], "texts of 300 tokens fit a streaming head of 128 + 256"),
        (["kvzap", "--budget", 100], "kvzap learns scores, not a budget: leave --budget out"),
        (["dms", "--budget", 100], "--set ratio=N"),
        (["attention_gate", "--budget", 100], "--set target=SHARE"),
        (["dmc", "--budget", 100], "--set ratio=N"),
        (["lococo", "--length", 200], "the last 128 are predicted, and 128 slots hold all before them"),
        (["duo_attention", "--budget", 100], "leaves nothing beside 128 sinks"),
        (
            ["trim_kv", "--data", "text", "--length", 64, "--budget", 8, "--samples", 10_000],
            "10000 samples of 64 tokens need 640000",
        ),
    ],
)
def test_bad_input_is_one_line(cli, prose, evaluated, tmp_path, words, reason):
    code, _, err = cli("train", *words, "--model", "toy", "--text", prose, "--out", tmp_path / "out")
    assert code == 2 and reason in err and "error:" in err.strip().splitlines()[-1]
    assert not (tmp_path / "out").exists()


def test_what_is_in_the_way_is_not_replaced(cli, prose, evaluated, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    code, _, err = cli("train", *TRIM, "--model", "toy", "--text", prose, "--out", tmp_path / "out")
    assert code == 2 and "holds no artefact" in err and (tmp_path / "out" / "notes.txt").read_text() == "mine"


def test_a_run_is_kept_beside_its_artefact(tmp_path):
    assert command.beside(tmp_path / "gate") == tmp_path / "gate.run"


def test_what_is_served_is_compared_with_what_was_not_learned(cli, talker, prose, evaluated, tmp_path):
    from experiments.train.served import at_budget, nats, rivals

    words = ["train", *TRIM, "--model", "toy", "--text", prose, "--out", tmp_path / "gate", "--held-out", 0]
    assert cli(*words)[0] == 0
    policies = rivals(load(tmp_path / "gate"), talker, 10, 0)
    assert set(policies) == {"full", "streaming_llm", "snapkv", "learned", "untrained"}
    ids = [[int(i) for i in np.random.default_rng(seed).integers(0, 257, 60)] for seed in range(2)]
    found = nats(talker, policies, ids, prompt=40)
    whole = kvjax.prefill(talker, ids[1], all_logits=True).rows[0].all_logits[40:59]
    want = -np.take_along_axis(np.asarray(jax.nn.log_softmax(whole)), np.array(ids[1])[41:, None], -1).mean()
    np.testing.assert_allclose(found["full"][1], want, rtol=1e-4)
    assert len({tuple(np.round(values, 6)) for values in found.values()}) > 2
    by_threshold = at_budget(kvjax.methods.kvzap(surrogate_gate(0)), 10)
    assert by_threshold.budget == 10 and by_threshold.allocate == kvjax.allocate.AcrossModel()
    learned = {"alpha": np.array([[0.1, 0.9], [0.2, 0.8]], np.float32)}
    alphas = Artefact("duo_attention", {"name": "toy"}, {}, {"sinks": 2, "recent": 6}, learned)
    duo = rivals(alphas, talker, 8, 0)
    np.testing.assert_array_equal(duo["learned"].allocate.pattern, [[0, 1], [0, 1]])
    np.testing.assert_array_equal(duo["untrained"].allocate.pattern, [[1, 1], [0, 0]])
    assert np.asarray(duo["shuffled 2"].allocate.pattern).sum() == 2
