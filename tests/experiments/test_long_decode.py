"""`kvjax bench long`: a budget that stays, and what is refused."""

import json

import numpy as np
import pytest

import kvjax
from experiments.bench.long_decode import check, long_decode, methods, table
from tests.conftest import ids_of, policy_of

SMALL = "random:layers=2,width=32,heads=2,positions=1024"
HOW = {"model": SMALL, "budget": 16, "prompt": 40, "tokens": 60, "block": 20}


def test_every_method_holds_its_budget_and_a_second_run_goes_on(tmp_path):
    path = tmp_path / "long.json"
    first = long_decode(["tova"], path=path, **HOW)["cells"]["tova"]
    assert first["slots"] == 16 and first["bytes"] <= first["bytes_at_bound"] and first["tokens"] == 60
    result = long_decode(["tova", "streaming_llm"], path=path, **HOW)
    assert result["cells"]["tova"] == first and set(json.loads(path.read_text())["cells"]) == {"tova", "streaming_llm"}
    assert [line[0] for line in table(result)] == sorted(result["cells"], key=lambda name: -result["cells"][name]["ratio"])
    with pytest.raises(ValueError, match="holds a run of"):
        long_decode(["tova"], path=path, **HOW | {"budget": 20})


def test_a_policy_that_grows_is_named(lm):
    with pytest.raises(ValueError, match="heads hold 90 slots, above their bound of 40"):
        check(kvjax.compress(kvjax.prefill(lm, ids_of(90)), policy_of("full")), 90, np.full((3, 1, 2), 40))


def test_positions_and_numbers_are_looked_at(lm, pre):
    cache, most = kvjax.compress(pre, policy_of("tova")), np.full((3, 1, 2), 90)
    check(cache, 90, most)
    with pytest.raises(ValueError, match="next token's position is"):
        check(cache, 91, most)
    with pytest.raises(ValueError, match="logits are no numbers"):
        check(cache.replace(logits=cache.logits.at[0, 0].set(np.nan)), 90, most)
    with pytest.raises(ValueError, match="positions that are not the text's"):
        check(cache.replace(pos=0 * cache.pos), 90, most)


def test_methods_that_hold_a_budget():
    assert "tova" in methods() and "full" not in methods() and "trim_kv" not in methods()
