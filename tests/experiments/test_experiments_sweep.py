"""The sweep engine on a toy model: one prefill a prompt, whole rows, resumed without doubles or holes."""

import json
from dataclasses import replace
from hashlib import sha256

import jax
import pytest

import kvjax
from experiments import sweep, traces
from experiments.measure import batches, decoded_together, measure
from experiments.policies import parse_policy
from experiments.prefills import Kept
from experiments.row_checks import trace
from experiments.rows import Found, RowFile, key
from experiments.tasks import needle, ppl
from experiments.tasks.answering import Answering
from experiments.tasks.chat import encode_plain
from experiments.tasks.datasets import scbench
from experiments.tasks.datasets.longbench import LongBench
from experiments.tasks.datasets.source import Local
from experiments.tasks.text import Haystack
from tests.experiments.conftest import TEXT, lines

HAYSTACK = Haystack(TEXT, "toy")


@pytest.fixture(scope="module")
def plan():
    cells = tuple(parse_policy(*cell) for cell in [("streaming_llm", 0.5), ("keydiff", 40), ("snapkv:window=8", 0.25)])
    return sweep.Plan(((Answering(needle), "unseen"), (ppl, "-")), (420,), cells, prompts=2)


def go(talker, plan, path, **more):
    with RowFile(path, sweep.identity(talker, HAYSTACK)) as rows:
        return sweep.run(talker, plan, HAYSTACK, rows, **more)


@pytest.fixture(scope="module")
def whole(talker, plan, tmp_path_factory):
    """A sweep that nothing disturbed."""
    path = tmp_path_factory.mktemp("sweep") / "whole.jsonl"
    assert go(talker, plan, path) == plan.total == 16
    return path


def test_rows_carry_what_repeats_them(whole, plan):
    for row in lines(whole):
        assert {"policy_repr", "seed", "versions", "commit", "machine", "allocated_bytes", "full_bytes"} <= set(row)
        assert ("nll" in row) == (row["task"] == "ppl") and ("score" in row) == (row["task"] == "needle")
        if row["policy"] == "full":
            assert row["kept_share"] == 1.0 and row["allocated_bytes"] >= row["full_bytes"]
    kept = {row["policy"]: row["kept_slots"] for row in lines(whole) if row["task"] == "ppl"}
    assert kept["keydiff"] == 40 * 4 and kept["snapkv:window=8"] == 105 * 4


def test_other_weights_of_the_same_name_are_refused(talker, plan, tmp_path):
    """A row says which weights made it; rows that do not are taken at their word."""
    path, shared = tmp_path / "rows.jsonl", sweep.identity(talker, HAYSTACK)
    go(talker, replace(plan, policies=(), tasks=plan.tasks[1:]), path)
    assert {row["weights"] for row in lines(path)} == {shared["weights"]}
    tuned = talker.replace(params=jax.tree.map(lambda x: x * 1.5, talker.params))
    with pytest.raises(ValueError, match=r"rows of other weights under the name 'toy' \(their mark is \d+, here it is \d+\)"):
        Found(path, sweep.identity(tuned, HAYSTACK))
    bare = [{name: x for name, x in row.items() if name != "weights"} for row in lines(path)]
    path.write_text("".join(json.dumps(row) + "\n" for row in bare))
    assert len(Found(path, sweep.identity(tuned, HAYSTACK))) == len(bare)


def test_the_full_cache_is_always_measured_once(plan):
    assert [cell.name for cell in plan.cells].count("full") == 1 and len(plan.cells) == 4


@pytest.mark.parametrize("kept", [0.0, 0.13, 0.5, 0.77, 0.999])
def test_a_killed_sweep_ends_as_if_it_had_not_been(talker, plan, whole, tmp_path, kept):
    path = tmp_path / "killed.jsonl"
    data = whole.read_bytes()
    path.write_bytes(data[: int(kept * len(data))])
    done = path.read_bytes().count(b"\n")
    assert go(talker, plan, path) == plan.total - done
    scores = lambda path: sorted((str(key(r)), r.get("nll"), r.get("answer")) for r in lines(path))  # noqa: E731
    for mine, other in zip(scores(path), scores(whole), strict=True):
        assert mine[0] == other[0] and mine[2] == other[2] and mine[1] == pytest.approx(other[1], abs=1e-5)


def test_a_sweep_stopped_between_rows_goes_on(talker, plan, tmp_path):
    path, seen = tmp_path / "stopped.jsonl", []

    def stop(count):
        seen.append(count)
        if sum(seen) >= 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go(talker, plan, path, done=stop)
    assert len(lines(path)) == 5
    assert go(talker, plan, path) == plan.total - 5
    assert go(talker, plan, path) == 0
    cells = [key(row) for row in lines(path)]
    assert len(cells) == len(set(cells)) == plan.total


def test_one_prefill_a_prompt(talker, plan, tmp_path, monkeypatch):
    calls = []
    real = kvjax.prefill
    monkeypatch.setattr(kvjax, "prefill", lambda *a, **k: calls.append(1) or real(*a, **k))
    go(talker, plan, tmp_path / "rows.jsonl")
    assert len(calls) == 2 * 2


def test_a_policy_that_cuts_prompts_as_they_are_read_reads_them_alone(talker, plan, tmp_path, monkeypatch):
    """Beside others that share theirs; its rows say what it does by itself."""
    cell = parse_policy("pyramid_infer:p=0.2,least=8", 0.5)
    mixed = replace(plan, prompts=1, policies=(cell, *plan.policies), tasks=plan.tasks[::-1])
    calls, real = [], kvjax.prefill
    monkeypatch.setattr(kvjax, "prefill", lambda *a, **k: calls.append(k.get("streaming")) or real(*a, **k))
    assert go(talker, mixed, tmp_path / "rows.jsonl") == 2 * 5
    assert calls == 2 * [None, cell.policy]
    example = sweep.make(talker, (0, 0, 420, ppl, "-"), talker.encode(HAYSTACK.text))
    cache = real(talker, list(example.compressed), streaming=cell.policy)
    known = kvjax.extend(talker, cache, [list(example.answer[:-1])], cell.policy, return_logits=True, block=1)
    logits = jax.numpy.concatenate([cache.logits, known.logits[0]])
    nll = -jax.nn.log_softmax(logits)[jax.numpy.arange(len(example.answer)), jax.numpy.array(example.answer)].mean()
    (row,) = (row for row in lines(tmp_path / "rows.jsonl") if row["policy"].startswith("pyramid") and row["task"] == "ppl")
    assert row["kept_slots"] == cache.lengths.sum() < 4 * 420 and row["allocated_bytes"] == cache.nbytes
    assert row["nll"] == pytest.approx(float(nll), rel=1e-5)


def test_kept_prefills_serve_the_next_sweep(talker, plan, whole, tmp_path, monkeypatch):
    small = replace(plan, prompts=1, tasks=plan.tasks[1:])
    first = tmp_path / "first.jsonl"
    go(talker, replace(small, policies=plan.policies[:1]), first, prefills=Kept(tmp_path / "kept"))
    assert len(list((tmp_path / "kept").iterdir())) == 1
    go(talker, small, tmp_path / "more.jsonl", prefills=Kept(tmp_path / "kept"))  # asks for more evidence: prefilled once more
    monkeypatch.setattr(kvjax, "prefill", lambda *a, **k: pytest.fail("prefilled again"))
    again = tmp_path / "again.jsonl"
    go(talker, small, again, prefills=Kept(tmp_path / "kept"))
    want = {key(row): row["nll"] for row in lines(whole) if row["task"] == "ppl"}
    assert all(row["nll"] == want[key(row)] for row in lines(again))


def test_traces_of_the_first_prompt_stand_beside_the_rows(talker, plan, tmp_path):
    path, small = tmp_path / "rows.jsonl", replace(plan, tasks=plan.tasks[1:])
    shared = sweep.identity(talker, HAYSTACK)
    with RowFile(path, shared) as rows, RowFile(traces.beside(path), shared, trace) as traced:
        assert sweep.run(talker, small, HAYSTACK, rows, traced=traced) == 8
    kept = lines(traces.beside(path))
    assert len(kept) == 4 and {row["prompt"] for row in kept} == {0}
    totals = {key(row): row["kept_slots"] for row in lines(path)}
    assert all(sum(map(sum, row["lengths"])) == totals[key(row)] for row in kept)


def test_programs_are_forgotten_before_the_memory_maps_run_out(monkeypatch):
    from experiments import memory_maps

    assert memory_maps.held() > 100
    monkeypatch.setattr(memory_maps, "MOST", 0)
    f = jax.jit(lambda x: x + 1)
    f(1.0)
    memory_maps.forget_programs()
    assert f._cache_size() == 0


def test_every_cell_sees_to_the_memory_maps(talker, plan, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("experiments.measure.forget_programs", lambda: asked.append(1))
    assert go(talker, replace(plan, prompts=1), tmp_path / "rows.jsonl") == len(asked)


def test_rows_of_a_batch_score_as_alone(talker, plan, whole):
    example = next(ppl.examples(talker, 420, 1, 0, haystack=talker.encode(TEXT)))
    for cell in plan.cells:
        ((row, _),) = measure(talker, ppl, [example], [cell], needs=[cell.policy])
        (other,) = [r for r in lines(whole) if r["task"] == "ppl" and r["prompt"] == 0 and r["policy"] == cell.name]
        assert row["nll"] == pytest.approx(other["nll"], abs=1e-5)


@pytest.mark.parametrize("together", [2, 3])
def test_prompts_measured_together_score_as_one_by_one(talker, plan, whole, tmp_path, together):
    path, want = tmp_path / "rows.jsonl", {key(row): row for row in lines(whole)}
    several = replace(plan, together=together)
    assert go(talker, several, path) == 16 and not several.missing(Found(path, sweep.identity(talker, HAYSTACK)), _first(plan))
    for row in lines(path):
        alone = want[key(row)]
        assert row["rows"] == 2 * alone["rows"] and row.get("answer") == alone.get("answer")
        assert row["kept_slots"] == alone["kept_slots"] and row["allocated_bytes"] == alone["allocated_bytes"]
        assert row.get("nll") == pytest.approx(alone.get("nll"), abs=1e-5)


def test_a_sweep_goes_on_with_more_prompts_together(talker, plan, whole, tmp_path):
    path = tmp_path / "rows.jsonl"
    go(talker, replace(plan, prompts=1), path)
    more = replace(plan, together=2)
    works = list(more.works(Found(path, sweep.identity(talker, HAYSTACK)), traced=True))
    assert [(work.indices, len(work.cells), work.trace) for work in works] == [((1,), 4, False)] * 2
    assert go(talker, more, path) == 8 and {key(row) for row in lines(path)} == {key(row) for row in lines(whole)}


def test_a_batch_has_room_for_so_many_prompts_and_no_more(talker):
    found = list(needle.examples(talker, 420, 5, 0, haystack=talker.encode(TEXT), mode="unseen"))
    sizes = [len(some) for some in decoded_together(found, Answering(needle), 2)]
    assert sizes == [2, 2, 1]
    longer = [replace(example, new_tokens=7) if example.index < 2 else example for example in found]
    assert sorted(len(some) for some in decoded_together(longer, Answering(needle), 9)) == [2, 3]


def _first(plan):
    return next(iter(plan.prompt_keys()))


def test_policies_that_decode_alike_share_a_batch():
    cells = [parse_policy(*cell) for cell in [("snapkv", 0.5), ("h2o", 0.5), ("keydiff", 0.2), ("h2o", 0.1)]]
    sizes = sorted(len(group) for group in batches(cells, 32))
    assert sizes == [2, 2]
    assert [len(g) for g in batches([cells[0]] * 9, 4)] == [3, 3, 3]


def test_a_sweep_does_not_go_on_over_other_data(talker, plan, tmp_path):
    file, path = tmp_path / "hotpotqa.jsonl", tmp_path / "rows.jsonl"
    asked = {"input": "Who?", "context": "Ann did it. " * 20, "answers": ["Ann"], "length": 3, "all_classes": None}
    write = lambda *changes: file.write_text("".join(json.dumps(asked | change) + "\n" for change in changes))  # noqa: E731
    of_file = lambda count: replace(  # noqa: E731
        plan, tasks=((Answering(LongBench("hotpotqa", Local(file))), "seen"),), policies=plan.policies[:1], prompts=count
    )
    write({}, {"input": "Why?"})
    assert go(talker, of_file(1), path) == 2
    (digest,) = {row["data"] for row in lines(path)}
    assert digest == sha256(file.read_bytes()).hexdigest()[:12]
    write({}, {"input": "When?"})
    before = path.read_bytes()
    with pytest.raises(ValueError, match=f"data files of longbench/hotpotqa/official changed: .* measured on {digest}"):
        go(talker, of_file(2), path)
    found = Found(path, sweep.identity(talker, HAYSTACK))
    with pytest.raises(ValueError, match=f"data files of longbench/hotpotqa/official changed: .* measured on {digest}"):
        sweep.check(talker, of_file(2), encode_plain(talker, TEXT), found)
    assert path.read_bytes() == before
    write({}, {"input": "Why?"})
    assert go(talker, of_file(2), path) == 2


def test_what_does_not_fit_is_refused_before_anything_runs(talker, plan, tmp_path):
    for lengths, reason in (((420, 2000), "positions"), ((100,), "too short"), ((6000,), "haystack")):
        with pytest.raises(ValueError, match=reason):
            go(talker, replace(plan, lengths=lengths), tmp_path / "rows.jsonl")
    assert (tmp_path / "rows.jsonl").read_bytes() == b""


def test_prompts_that_a_task_does_not_have_are_refused_before_anything_runs(talker, plan, tmp_path):
    asked = {"input": "Who?", "context": "Ann did it. " * 20, "answers": ["Ann"], "length": 3, "all_classes": None}
    (tmp_path / "hotpotqa.jsonl").write_text(2 * (json.dumps(asked) + "\n"))
    task = Answering(LongBench("hotpotqa", Local(tmp_path / "hotpotqa.jsonl")))
    three = replace(plan, tasks=((task, "seen"),), policies=(), prompts=3)
    with pytest.raises(ValueError, match="longbench/hotpotqa/official has no prompt 2 at length 420: ask for fewer --prompts"):
        go(talker, three, tmp_path / "rows.jsonl")
    assert (tmp_path / "rows.jsonl").read_bytes() == b""


def test_a_prompt_in_the_middle_that_does_not_fit_is_not_measured(talker, plan, tmp_path):
    """All turns of a conversation count. The first and the last prompt are seen before the sweep, those between in their turn."""
    rows = [{"context": "c", "multi_turns": [{"input": f"{turn}?", "answer": "a"} for turn in range(2)]} for _ in range(3)]
    file = tmp_path / "scbench_kv.jsonl"

    def task():
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return next(task for task in scbench.tasks(tmp_path) if (task.task, task.protocol.name) == ("kv", "multi_turn"))

    middle = list(task().examples(talker, 420, 3, 0, haystack=(), mode="seen"))[1].meta["row"]
    rows[middle]["multi_turns"][0]["answer"] = "long " * talker.decoder.max_positions
    three = replace(plan, tasks=((task(), "seen"),), policies=plan.policies[:1], prompts=3)
    with pytest.raises(ValueError, match="prompt 1 of scbench/kv/multi_turn at length 420 needs [0-9]* positions, the model has"):
        go(talker, three, tmp_path / "rows.jsonl")
    assert {row["prompt"] for row in lines(tmp_path / "rows.jsonl")} == {0}
