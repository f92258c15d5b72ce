"""Published orderings beside measured rows: which budgets compare, on which prompts, and what the page says of them."""

import pytest

from experiments.result_pages import board, published
from experiments.result_pages.claims import METHODS, QUANTISED, Published, claims
from experiments.result_pages.orderings import orderings
from kvjax import methods
from tests.experiments.conftest import row


def cells(policy: str, budget: float, scores: list[float], **change) -> list[dict]:
    """A row a score, of prompts 0, 1, ..."""
    common = {"policy": policy, "policy_repr": policy, "budget": budget} | change
    return [row(**common | {"prompt": prompt, "score": score}) for prompt, score in enumerate(scores)]


def nats(policy: str, budget: float, values: list[float], begins: list[int]) -> list[dict]:
    made = cells(policy, budget, values, task="ppl", mode="-")
    return [{name: x for name, x in one.items() if name != "score"} | {"nll": one["score"], "begin": at}
            for one, at in zip(made, begins, strict=True)]  # fmt: skip


def test_equal_budgets_compare_on_the_prompts_that_both_have():
    rows = cells("snapkv", 0.5, [1.0] * 8) + cells("snapkv", 0.25, [0.0] * 8) + cells("h2o", 0.5, [0.0] * 6)
    (found,) = orderings(rows, [("snapkv", "h2o")])
    assert (found.budget, found.count, found.verdict.word) == ("0.5", 6, "holds")
    (other,) = orderings(rows, [("h2o", "snapkv")])
    assert other.verdict.word == "reversed" and other.verdict.difference.mean == -1.0
    assert orderings(rows, [("snapkv", "tova")]) == []


def test_a_method_of_its_own_size_stands_beside_as_many_bytes():
    """20% of a 16-bit cache of 1,000 bytes: beside a quarter of the slots, not an eighth; nothing where none is as large."""
    size = {"full_bytes": 2000, "allocated_bytes": 200, "dtype": "float32"}
    mine = cells("hcattention", 1.0, [1.0] * 6, **size)
    others = [one for budget in (0.5, 0.25, 0.125) for one in cells("h2o", budget, [0.0] * 6, **size)]
    (found,) = orderings(mine + others, [("hcattention", "h2o")])
    assert found.budgets == (1.0, 0.25) and found.budget == "1.0, 0.25"
    large = cells("hcattention", 1.0, [1.0] * 6, **size | {"allocated_bytes": 900})
    assert orderings(large + others, [("hcattention", "h2o")]) == []


def test_a_budget_of_another_task_or_length_is_no_choice():
    """A fifth was measured of longer prompts alone: the needle of 1,024 tokens stands beside its own quarter."""
    size = {"full_bytes": 2000, "allocated_bytes": 200, "dtype": "float32"}
    mine = cells("hcattention", 1.0, [1.0] * 6, **size)
    others = cells("h2o", 0.25, [0.0] * 6, **size) + cells("h2o", 0.2, [0.0] * 6, **size | {"length": 1280})
    (found,) = orderings(mine + others, [("hcattention", "h2o")])
    assert found.budgets == (1.0, 0.25)


def test_what_has_a_size_of_its_own_is_beside_every_budget():
    rows = [one for budget in (0.5, 0.25) for one in cells("heterocache", budget, [1.0] * 6)] + cells("quest", 1.0, [0.0] * 6)
    assert [found.budgets for found in orderings(rows, [("heterocache", "quest")])] == [(0.5, 1.0), (0.25, 1.0)]


def test_stretches_that_share_graded_tokens_count_as_one():
    """Six stretches, three by three the same tokens: two units are not enough to be sure, six are."""
    better, worse = [1.0, 1.1, 1.2, 1.0, 1.1, 1.2], [1.3] * 6
    apart, shared = [0, 1000, 2000, 3000, 4000, 5000], [0, 100, 200, 3000, 3100, 3200]
    (sure,) = orderings(nats("a", 0.5, better, apart) + nats("b", 0.5, worse, apart), [("a", "b")])
    (unsure,) = orderings(nats("a", 0.5, better, shared) + nats("b", 0.5, worse, shared), [("a", "b")])
    assert sure.verdict.word == "holds"
    assert sure.verdict.difference.mean == pytest.approx(unsure.verdict.difference.mean) == pytest.approx(0.2)
    assert unsure.count == 6, "n is the number of prompts"
    tight, loose = (x.verdict.difference.high - x.verdict.difference.low for x in (sure, unsure))
    assert loose != pytest.approx(tight)


@pytest.mark.parametrize("published", [METHODS, QUANTISED])
def test_claims_name_methods_of_the_library_and_a_source(published: Published):
    found = list(claims(published))
    for claim in found:
        assert {method.partition(":")[0] for method in claim.pair} <= set(methods.names()), claim
        assert claim.source.strip() and claim.better != claim.worse, claim


@pytest.mark.parametrize("published", [METHODS, QUANTISED])
def test_no_pair_is_claimed_twice_or_both_ways(published: Published):
    pairs = [claim.pair for claim in claims(published)]
    assert len(pairs) == len(set(pairs))
    assert not any((worse, better) in pairs for better, worse in pairs)


@pytest.fixture
def rows(monkeypatch):
    """needle: snapkv above streaming_llm at a half, slots of a method that takes slots alone, a trained model's row."""
    size = {"length": 1024, "full_bytes": 2000, "allocated_bytes": 200, "commit": "12ab", "text": "essays", "host_bytes": 0}
    made = cells("snapkv", 0.5, [1.0] * 8, **size) + cells("streaming_llm", 0.5, [0.0] * 8, **size)
    made += cells("rkv", 512, [1.0] * 8, **size) + cells("snapkv", 0.25, [0.0] * 5, **size)
    made += cells("trim_kv:sinks=4,artefact=toy", 0.5, [0.0] * 8, **size)
    made += cells("streaming_llm", 0.5, [1.0] * 8, **size | {"model": "toy+dmc-12ab"})
    monkeypatch.setattr(board, "rows", lambda: made)
    return made


def test_the_page_has_a_verdict_a_pair_and_says_what_is_left_out(rows):
    text = published.page()
    lines = [line for line in text.splitlines() if line.startswith("| snapkv | streaming")]
    assert lines == ["| snapkv | streaming_llm | arXiv 2508.02401, LongBench | +100 [+54, +100] holds | 8 |"]
    reversed_ = "| trim_kv | rkv | arXiv 2512.03324, Figure 3 | -100 [-100, -54] reversed | 8 |"
    assert reversed_ in text, "options aside, slots as the share that they are"
    assert "d2o and h2o" in text.split("Published, and not at one size here: ")[1]
    assert published.counts() == "1 holds, 2 reversed, 0 bounded, 2 unresolved"
