"""lm-eval's own evaluation of local tasks, with contexts compressed. Needs pip install -c constraints.txt -e '.[lm-eval]'."""

import json
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from tests.experiments.conftest import DATED, byte_tokenizer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its imports, which are not ours
    lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is not installed: the extra `lm-eval`")
    from lm_eval.api.instance import Instance
    from lm_eval.tasks import TaskManager

    from experiments.lm_eval import CompressedLM

STORY = "The harbour master counts the boats each morning and writes the number in a green book. "
QUESTIONS = [
    dict(question=STORY * 2 + f"On day {i} the number was {i}. Which colour is it?", choices=["red", "green", "an"], label=1)
    for i in range(3)
]


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    """Data sets are read from files and cached in the test's own folder."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(map(json.dumps, QUESTIONS)))
    return {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(path)}}, "test_split": "test"}


@pytest.fixture
def choice(data):
    ask = {"doc_to_text": "{{question}} It is", "doc_to_choice": "choices", "doc_to_target": "label"}
    return {"task": "colours", "output_type": "multiple_choice", **data, **ask}


@pytest.fixture
def words(data):
    ask = {"doc_to_text": "{{question}}", "doc_to_target": "{{choices[label]}}"}
    how = {"generation_kwargs": {"until": ["\n\n"], "max_gen_toks": 12}, "metric_list": [{"metric": "exact_match"}]}
    return {"task": "words", "output_type": "generate_until", **data, **ask, **how}


@pytest.fixture
def text(data):
    return {"task": "story", "output_type": "loglikelihood_rolling", **data, "doc_to_text": "", "doc_to_target": "{{question}}"}


@pytest.fixture(scope="module")
def manager():
    """lm-eval's index of tasks without the thousands that come with it."""
    return TaskManager(include_defaults=False)


def evaluate(model, task, manager) -> dict:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return lm_eval.simple_evaluate(model, tasks=[task], bootstrap_iters=0, task_manager=manager)


def answers(found: dict) -> list:
    """What the model said to every request of every document."""
    (samples,) = found["samples"].values()
    return [resps for sample in sorted(samples, key=lambda s: s["doc_id"]) for resps in sample["filtered_resps"]]


def by_prefill(lm, context: str, answer: str) -> tuple[float, bool]:
    """log p(answer | context) from the logits of one prefill of both."""
    ids, start = lm.encode(context + answer), len(lm.encode(context))
    logits = kvjax.prefill(lm, ids, all_logits=True).rows[0].all_logits[start - 1 : len(ids) - 1]
    targets = jnp.asarray(ids[start:])
    logp = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[:, None], 1)
    return float(logp.sum()), bool((logits.argmax(-1) == targets).all())


@pytest.mark.parametrize(
    "policy",
    [kvjax.methods.full(), pytest.param(kvjax.methods.snapkv(budget=1.0), marks=pytest.mark.slow)],
    ids=["full", "snapkv"],
)
def test_at_the_whole_budget_choices_score_as_by_the_library(talker, choice, policy, manager):
    adapter = CompressedLM(talker, policy)
    found = evaluate(adapter, choice, manager)
    expected = [by_prefill(talker, doc["question"] + " It is", " " + word) for doc in QUESTIONS for word in doc["choices"]]
    got = answers(found)
    assert np.allclose([x for x, _ in got], [x for x, _ in expected], atol=1e-4)
    assert [bool(y) for _, y in got] == [y for _, y in expected]
    best = np.argmax(np.reshape([x for x, _ in expected], (3, 3)), 1)
    assert found["results"]["colours"]["acc,none"] == pytest.approx(np.mean(best == 1))
    assert len(adapter.nbytes["full"]) == len(QUESTIONS)  # one prefill a document, not one a choice


@pytest.mark.slow
def test_a_small_budget_changes_even_answers_of_one_token(talker):
    request = [("x", talker.encode(STORY * 2), [120])]
    adapters = [CompressedLM(talker, kvjax.methods.snapkv(budget=budget, window=8)) for budget in (1.0, 16)]
    (whole, _), (cut, _) = (adapter._loglikelihood_tokens(request, disable_tqdm=True)[0] for adapter in adapters)
    assert abs(whole - cut) > 1e-3


def test_rows_of_one_context_score_as_alone(talker):
    policy = kvjax.methods.snapkv(budget=40, window=8)
    context = talker.encode(STORY * 2)
    asked = [("", context, talker.encode(word)) for word in (" red", " a longer answer", " x")]
    together = CompressedLM(talker, policy)._loglikelihood_tokens(asked, disable_tqdm=True)
    alone = [CompressedLM(talker, policy)._loglikelihood_tokens([one], disable_tqdm=True)[0] for one in asked]
    assert np.allclose([x for x, _ in together], [x for x, _ in alone], atol=1e-4)


def test_a_context_that_is_cut_as_it_is_read_scores_as_by_the_library(talker):
    """PyramidInfer, of which no whole prefill can be compressed."""
    policy = kvjax.methods.pyramid_infer(p=0.2, least=8)
    adapter, context = CompressedLM(talker, policy), talker.encode(STORY)
    ((found, _),) = adapter._loglikelihood_tokens([("", context, [120, 121])], disable_tqdm=True)
    cache = kvjax.prefill(talker, context[:-1], streaming=policy)
    logits = kvjax.extend(talker, cache, [[context[-1], 120]], policy, return_logits=True, block=1).logits[0]
    log_p = jax.nn.log_softmax(logits)
    assert found == pytest.approx(float(log_p[0, 120] + log_p[1, 121]), abs=1e-4)
    assert adapter.nbytes["used"][0] < adapter.nbytes["full"][0]


@pytest.mark.slow
@pytest.mark.parametrize("budget", [1.0, 40])
def test_generated_answers_are_the_librarys(talker, words, budget, manager):
    policy = kvjax.methods.snapkv(budget=budget, window=8)
    adapter = CompressedLM(talker, policy)
    got = answers(evaluate(adapter, words, manager))
    for doc, text in zip(QUESTIONS, got, strict=True):
        *kept, last = talker.encode(doc["question"])
        cache = kvjax.compress(kvjax.prefill(talker, kept), policy)
        cache = kvjax.extend(talker, cache, [last], policy).cache
        out = kvjax.decode(talker, cache, policy, max_new_tokens=12)
        whole = talker.decode(out.tokens[0][out.tokens[0] != talker.stop_ids[0]])
        assert text == whole.split("\n\n")[0]
    assert adapter.nbytes["used"][0] < adapter.nbytes["full"][0] or budget == 1.0


@pytest.mark.slow
def test_generation_stops_at_a_string_and_goes_on_past_a_look(talker):
    adapter, ids = CompressedLM(talker, kvjax.methods.full()), "Once upon a time"
    ask = lambda **how: adapter.generate_until([Instance("generate_until", {}, (ids, how), 0)], disable_tqdm=True)[0]  # noqa: E731
    long = ask(until=[], max_gen_toks=100)
    out = kvjax.generate(talker, ids, kvjax.methods.full(), max_new_tokens=100)
    assert long == talker.decode(out.tokens[0][: int(out.lengths[0])]).removesuffix("<eos>")
    middle = long[70:72]
    assert ask(until=[middle], max_gen_toks=100) == long[: long.find(middle)]


@pytest.mark.slow
@pytest.mark.parametrize("length", [None, 64])
def test_a_text_is_scored_in_windows(talker, text, length, manager):
    adapter = CompressedLM(talker, kvjax.methods.full(), length)
    got = [float(np.squeeze(x)) for x in answers(evaluate(adapter, text, manager))]
    for doc, found in zip(QUESTIONS, got, strict=True):
        ids, expected = [talker.stop_ids[0], *talker.encode(doc["question"])], 0.0
        width = length or len(ids)
        for at in range(1, len(ids), width):  # the last window is whole: it begins earlier
            end = min(at + width, len(ids))
            begin = 0 if at == 1 else end - width - 1
            logits = kvjax.prefill(talker, ids[begin : end - 1], all_logits=True).rows[0].all_logits
            logp = jax.nn.log_softmax(logits[: end - 1 - begin])
            expected += sum(float(logp[i - 1 - begin, ids[i]]) for i in range(at, end))
        assert found == pytest.approx(expected, abs=1e-3)


def test_a_text_is_scored_behind_its_own_half_compressed(talker):
    """The first half of a window as the prompt says it, the second behind the cut prompt: not what the full cache says."""
    policy, text = kvjax.methods.snapkv(budget=12, window=4), STORY[:80]
    read = [talker.stop_ids[0], *talker.encode(text)]
    half = (len(read) - 1) // 2
    pre = kvjax.prefill(talker, read[:half], needs=policy, all_logits=True)
    cache = kvjax.compress(pre, policy)
    later = kvjax.extend(talker, cache, [read[half:-1]], policy, return_logits=True).logits[0]
    logits = jnp.concatenate([pre.rows[0].all_logits[: half - 1], cache.logits, later])
    wanted = float(jax.nn.log_softmax(logits)[jnp.arange(len(read) - 1), jnp.asarray(read[1:])].sum())
    request = [Instance("loglikelihood_rolling", {}, (text,), 0)]
    said = lambda policy: CompressedLM(talker, policy).loglikelihood_rolling(request, disable_tqdm=True)[0]  # noqa: E731
    cut, whole = said(policy), said(kvjax.methods.full())
    assert cut == pytest.approx(wanted, abs=1e-3) and abs(cut - whole) > 1e-2


def test_bytes_in_host_memory_count(talker):
    """FastDecode keeps the prompt with the host: half of the pool, and all of it there."""
    policy = kvjax.methods.fastdecode(budget=0.5)
    cache = kvjax.compress(kvjax.prefill(talker, talker.encode(STORY), needs=policy), policy)
    adapter = CompressedLM(talker, policy)
    adapter._account(cache, len(STORY))
    host, found = cache.host_nbytes, {name: sizes[0] for name, sizes in adapter.nbytes.items()}
    assert host >= found["full"] > 0
    assert (found["used"], found["allocated"]) == (cache.used_nbytes + host, cache.nbytes + host)


def test_answers_are_drawn_where_a_task_asks_for_it(talker):
    """At a high temperature other tokens than the likeliest, and those again where only the likeliest may be drawn."""
    adapter = CompressedLM(talker, kvjax.methods.full())

    def ask(**how):
        how = dict(until=[], max_gen_toks=16, **how)
        return adapter.generate_until([Instance("generate_until", {}, ("Once upon", how), 0)], disable_tqdm=True)[0]

    greedy, drawn = ask(), ask(do_sample=True, temperature=50.0)
    assert drawn != greedy and ask(do_sample=True, temperature=50.0) == drawn
    assert ask(do_sample=True, temperature=50.0, top_k=1) == greedy == ask(do_sample=False)


def test_long_contexts_lose_their_beginning(talker):
    adapter, ids = CompressedLM(talker, kvjax.methods.full(), max_length=32), talker.encode(STORY)
    cut = adapter._loglikelihood_tokens([("", ids, [5, 6])], disable_tqdm=True)
    assert cut == adapter._loglikelihood_tokens([("", ids[-30:], [5, 6])], disable_tqdm=True)
    with pytest.raises(ValueError, match="an answer of 40 tokens leaves no room"):
        adapter._loglikelihood_tokens([("", ids, [5] * 40)])


@pytest.mark.slow
def test_the_command_runs_a_task_of_the_users_own(talker, choice, tmp_path, monkeypatch, capsys):
    import models
    from experiments.commands.lm_eval import lm_eval as command

    monkeypatch.setattr(models, "load", lambda name, dtype="float32": talker)
    (tmp_path / "colours.yaml").write_text(json.dumps(choice))  # JSON is YAML
    result = tmp_path / "result.json"
    how = dict(policy="snapkv:window=8", budget="24", folder=tmp_path, json_file=result, limit=2, shots=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        command("toy", "colours", **how)
    shown, found = capsys.readouterr().out, json.loads(result.read_text())
    assert "colours" in shown and "2 contexts" in shown
    assert found["results"]["colours"]["sample_len"] == 2 and found["budget"] == 24
    assert found["used_bytes"] < found["full_bytes"] / 3
    with pytest.raises(ValueError, match="lm-eval has no no_such_task"):
        command("toy", "no_such_task", folder=tmp_path)


def test_a_template_that_writes_the_day_writes_the_same_on_all_days(talker):
    tokenizer = byte_tokenizer()
    tokenizer.inner.chat_template = DATED
    model = CompressedLM(talker.replace(tokenizer=tokenizer), kvjax.methods.full())
    assert model.apply_chat_template([{"role": "user", "content": "Hello"}]) == "26 Jul 2024<user>Hello<bot>"
