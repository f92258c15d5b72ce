"""docs/results: every page is what its command makes of the committed rows; what a page may show and what it says of it."""

import json

import pytest

import kvjax
from experiments import full_cache
from experiments.leaderboard import pack
from experiments.result_pages import ablation, board, model_tasks, standing
from experiments.result_pages.orderings import orderings
from experiments.result_pages.pages import FOLDER, PAGES, write
from experiments.rows import read
from kvjax.artefacts.artefact import BUILT_IN
from tests.experiments.conftest import row

ORIGIN = "compresskv of smollm2-135m, e6b1c260325b"


@pytest.mark.parametrize("name", list(PAGES))
def test_a_page_is_made_of_the_committed_rows(name, tmp_path):
    assert write(name, tmp_path).read_text() == (FOLDER / f"{name}.md").read_text(), f"run `kvjax results {name}`"


def test_every_method_has_a_row_on_the_leaderboard():
    assert {found["policy"].partition(":")[0] for found in board.rows()} == set(kvjax.methods.names())
    assert "## Not measured" not in board.page()


def test_a_method_without_a_row_is_named_with_the_reason(monkeypatch):
    of_some = [found for found in board.rows() if found["policy"].partition(":")[0] not in ("dmc", "snapkv")]
    monkeypatch.setattr(board, "rows", lambda: of_some)
    _, _, missing = board.page().partition("## Not measured")
    assert "| dmc | wants weights that do not come with the library |" in missing
    assert "| snapkv | kvjax leaderboard --methods snapkv --dry-run tells |" in missing


def test_the_folder_holds_no_other_page():
    assert {path.stem for path in FOLDER.glob("*.md")} == set(PAGES)


def test_pages_hold_no_history():
    for name in PAGES:
        words = (FOLDER / f"{name}.md").read_text()
        assert "commit " not in words.replace("a commit without", "") and "by hand" not in words


def test_a_command_writes_the_pages_that_are_asked_for(cli, tmp_path):
    code, out, err = cli("results", "d2o_table6", "--out", tmp_path, "--json", tmp_path / "r.json")
    assert code == 0 and "d2o_table6.md" in out, err
    assert [path.name for path in tmp_path.glob("*.md")] == ["d2o_table6.md"]
    assert json.loads((tmp_path / "r.json").read_text())["pages"] == [str(tmp_path / "d2o_table6.md")]
    code, _, err = cli("results", "table99", "--out", tmp_path)
    assert code == 2 and "no page of results is called 'table99'" in err


def test_rows_whose_artefact_does_not_say_what_it_read_are_not_shown():
    made = f"Policy(score=RetrievalHeads(origin='{ORIGIN}, best 4'), budget=256)"
    assert standing.told(row()) and not standing.told(row(policy_repr=made))
    assert standing.told(row(policy_repr=made, artefacts={ORIGIN: "calibration of documentation, ab12"}))
    assert not standing.told(row(policy_repr=made, artefacts={"hcattention of smollm2-135m, 89690adf96cd": "x"}))


def test_every_committed_row_of_a_built_in_artefact_is_recognised():
    """The origin that stages write is the one that rows are searched for."""
    for header in BUILT_IN.glob("*/*/header.json"):
        found = json.loads(header.read_text())
        origin = f"{found['method']} of {found['model']['name']}, {found['digest']}"
        assert not standing.told(row(policy_repr=f"Policy(encode=Stored(keys=P(origin='keys, {origin}')))")), header


def test_a_page_says_how_many_rows_are_not_from_a_clean_commit():
    rows = [row(commit="12ab", text="essays"), row(commit="12ab+", text="essays", split="whole"), row(commit=None, text="essays")]
    assert [standing.clean(one) for one in rows] == [True, False, False]
    assert standing.said(rows) == (
        "3 rows, 2 of them not from a commit without changes. Prompts are cut from essays (whole)."
    )


def test_an_ablation_without_rows_says_how_to_measure_it(monkeypatch, tmp_path):
    monkeypatch.setattr(ablation, "ROWS", tmp_path)
    assert "No rows yet" in ablation.page("d2o_table6") and "kvjax ablate d2o_table6" in ablation.page("d2o_table6")


def _ranked(policy: str, budget: float, score: float, prompt: int) -> dict:
    found = row(policy=policy, policy_repr=policy, budget=budget, score=score, prompt=prompt)
    return found | {"commit": "12ab", "text": "essays", "split": "whole", "host_bytes": 0}


@pytest.fixture
def ranked(monkeypatch, tmp_path):
    """Three methods on two prompts, packed: keydiff is better than snapkv at 0.25 and worse at 0.5."""
    cells = [("full", 1.0, 1.0), ("snapkv", 0.5, 1.0), ("snapkv", 0.25, 0.0), ("keydiff", 0.5, 0.5), ("keydiff", 0.25, 1.0)]
    made = [_ranked(policy, budget, score, prompt) for policy, budget, score in cells for prompt in (0, 1)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in made))
    pack.main(tmp_path, tmp_path / "packed.jsonl.xz")
    monkeypatch.setattr(board, "COMMITTED", tmp_path / "packed.jsonl.xz")
    board.rows.cache_clear()
    yield made
    board.rows.cache_clear()


def test_packed_rows_are_the_rows_and_join_once(ranked, tmp_path):
    packed = tmp_path / "packed.jsonl.xz"
    assert sorted(map(str, read(packed))) == sorted(map(str, ranked))
    better = ranked[0] | {"score": 0.25}
    (tmp_path / "rows.jsonl").write_text(json.dumps(better) + "\n")
    pack.main(tmp_path, packed)
    found = read(packed)
    assert len(found) == len(ranked) and better in found
    anew = ranked[0] | {"policy_repr": "of another artefact"}
    former = [row for row in ranked if (row["policy"], row["budget"]) == (anew["policy"], anew["budget"])]
    assert len(former) == 2 and pack.joined(ranked, [anew]).count(anew) == 1
    assert sorted(map(str, pack.joined(ranked, [anew]))) == sorted(map(str, [anew, *(row for row in ranked if row not in former)]))
    another = [row | {"model": "toy+dmc-12ab"} for row in ranked]
    assert sorted(map(str, pack.joined(ranked, another))) == sorted(map(str, [*ranked, *another])), "models do not meet"
    with pytest.raises(ValueError, match="2 of 2 rows are not from a commit without changes"):
        pack.joined(found, [ranked[0] | {"commit": "12ab+"}, ranked[1] | {"commit": None}])


def test_a_damaged_pack_is_named(tmp_path):
    (tmp_path / "rows.jsonl.xz").write_bytes(b"no xz")
    with pytest.raises(ValueError, match="no file that xz packed"):
        read(tmp_path / "rows.jsonl.xz")


def test_the_leaderboard_ranks_by_the_mean_over_budgets(ranked):
    lines = board.page().splitlines()
    order = [line for line in lines if line.startswith("| [")]
    assert [line.split("]")[0] for line in order] == ["| [keydiff", "| [snapkv", "| [full"]
    assert "| 50% | 25% |" in "".join(lines)
    assert "| [keydiff](../methods.md#keydiff) | evict | 50 [9, 91] | 100 [34, 100] |" in order[0]
    assert any(line.startswith("| kvzip |") for line in lines), "what was not measured is named"
    (again,) = board.command(ranked).splitlines()
    assert "--methods keydiff,snapkv --budgets 0.5,0.25 " in again and "--prompts 2 " in again, "the full cache comes by itself"
    fewer = [row for row in ranked if row["policy"] != "keydiff" or row["prompt"] == 0]
    assert sorted(line.partition("--methods ")[2].split()[0] for line in board.command(fewer).splitlines()) == ["keydiff", "snapkv"]


def test_where_most_comes_after_the_prompt_the_entries_held_at_most_are_shown(ranked, monkeypatch):
    """A prompt's bytes say nothing of a cache that is cut while decoding."""
    longer = [row | {"task": "counting_given", "prompt_tokens": 20, "kv_peak": row["budget"] + 0.011} for row in ranked]
    with monkeypatch.context() as patch:
        patch.setattr(board, "rows", lambda: longer)
        lines = board.page().splitlines()
        patch.setattr(board, "rows", lambda: [row | {"prompt_tokens": row["length"]} for row in longer])
        assert "most entries at" not in board.page()
    assert any("| 50% | 25% | most entries at 25%, of full cache | n |" in line for line in lines)
    assert any(line.startswith("| [keydiff") and "| 26.1% |" in line for line in lines)


def test_each_length_of_the_leaderboard_has_a_command_with_its_budgets(ranked):
    longer = [row | {"length": 4096, "budget": {0.5: 512, 0.25: 256}.get(row["budget"], row["budget"])} for row in ranked]
    shares, slots = sorted(board.command(ranked + longer).splitlines(), key=lambda line: "--lengths 4096" in line)
    assert "--budgets 0.5,0.25 " in shares and "--budgets 512,256 " in slots and "--lengths 4096 " in slots


def test_a_model_trained_for_a_method_has_a_command_and_tables_of_its_own(ranked, monkeypatch):
    trained = [row | {"model": f"{row['model']}+dmc-12ab", "policy": "dmc", "budget": 1.0} for row in ranked[:2]]
    mine, other = board.command(ranked + trained).splitlines()
    assert "--methods keydiff,snapkv" in mine and "+TRAINED" in other and "--methods dmc --batched" in other
    before = board.top(5)
    with monkeypatch.context() as patch:
        patch.setattr(board, "rows", lambda: ranked + trained)
        assert board.top(5) == before and any("+dmc-12ab, float32" in line for line in board.page().splitlines())


def test_the_leaderboards_page_stands_beside_it(ranked, tmp_path):
    (tmp_path / "pages").mkdir()
    board.beside(tmp_path / "pages")
    assert "keydiff" in (tmp_path / "pages" / "leaderboard.html").read_text()
    assert len((tmp_path / "pages" / "leaderboard.csv").read_text().splitlines()) == 6


def test_a_storage_stands_beside_eviction_at_no_fewer_bytes():
    """Of the budgets 0.5, 0.25 and 0.125 the smallest that a 16-bit cache fills with at least the storage's bytes."""
    half = full_cache.half_nbytes(_ranked("mikv", 1.0, 1.0, 0))
    coded = [_ranked("mikv", 1.0, 1.0, prompt) | {"allocated_bytes": 0.2 * half} for prompt in (0, 1)]
    evicted = [_ranked("h2o", budget, 0.0, prompt) for budget in (0.5, 0.25, 0.125) for prompt in (0, 1)]
    (found,) = orderings([*coded, *evicted], [("mikv", "h2o")])
    assert (found.budget, found.difference[:4]) == ("1.0, 0.25", "+100")
    assert orderings([*coded, *evicted[-2:]], [("mikv", "h2o")]) == [] == orderings(evicted, [("mikv", "h2o")])


def test_a_task_is_fit_where_the_model_does_it_with_all_of_its_cache_and_not_with_half(monkeypatch):
    scores = {"needle": (1.0, 0.0), "vt": (0.5, 0.0), "niah": (1.0, 1.0)}  # of the full cache and of half of it, at random
    rows = [
        _ranked(policy, budget, score, prompt) | {"task": task}
        for task, of_task in scores.items()
        for (policy, budget), score in zip([("full", 1.0), ("random", 0.5)], of_task, strict=True)
        for prompt in range(10)
    ]
    monkeypatch.setattr(model_tasks, "ROWS", model_tasks.ROWS.with_name("another.jsonl"))
    assert "No rows yet" in model_tasks.page()
    monkeypatch.setattr(model_tasks, "shown", lambda path: rows)
    lines = [line.strip("|").split("|") for line in model_tasks.page().splitlines() if "unseen |" in line]
    cells = [[cell.strip() for cell in line] for line in lines]
    assert [(line[0], line[-1]) for line in cells] == [("needle unseen", "yes"), ("niah unseen", "no"), ("vt unseen", "no")]
    assert cells[0][1:6] == ["64", "100 [72, 100]", "0 [0, 28]", "-100 [-100, -61]", "10"]
