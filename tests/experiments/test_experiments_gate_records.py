"""The record of a run of `kvjax train` on the small model, and the gates that come with the library because of one."""

import json
from pathlib import Path

import numpy as np
import pytest

import kvjax
from experiments.leaderboard.cells import with_built_in
from experiments.train import record, table
from kvjax.artefacts.artefact import resolve

TRAINED = {
    "out": "out/x", "origin": "trim_kv of toy, 0123", "method": "trim_kv", "settings": {"steps": 2, "length": 8},
    "tables": {"a": ["float16", [30, 100]]}, "held_out": {"before": {"loss": 2.0}, "after": {"loss": 1.5}},
}  # fmt: skip
NATS = {"full": [1.0, 2.0], "untrained": [3.0, 4.0], "streaming_llm": [1.9, 3.5], "snapkv": [2.2, 2.9], "learned": [2.0, 3.0]}
SERVED = {"prompt": 6, "new": 2, "trim_kv": {"artefact": TRAINED["origin"], "slots": 4, "held-out": NATS}}
SHIPPED = {
    name: x
    for name in (path.name.split("_smollm2")[0].removeprefix("train_") for path in table.files())
    if (x := json.loads(record.path_of(name).read_text()))["shipped"].startswith("kvjax/")
}


def text(served=SERVED) -> str:
    log = ['{"step": 0, "loss": 2.0}', '{"step": 1, "loss": 1.5}']
    return record.record("kvjax train trim_kv", TRAINED, log, 1.5, served, "python -m served", {"spearman": 0.5}, "no")


def test_a_record_holds_the_command_the_log_and_what_was_served():
    found = json.loads(text())
    assert found["trim_kv"]["command"] == "kvjax train trim_kv" and [x["step"] for x in found["trim_kv"]["log"]] == [0, 1]
    assert found["served"]["nats"] == {"held-out": NATS} and found["heads"] == {"spearman": 0.5} and found["minutes"] == 1.5
    other = {**SERVED, "trim_kv": {**SERVED["trim_kv"], "artefact": "trim_kv of toy, 4567"}}
    with pytest.raises(ValueError, match="what was served is trim_kv of toy, 4567"):
        text(other)


def test_a_record_is_two_lines_of_the_tables():
    found = json.loads(text())
    assert table.run_line("trim_kv", found) == "| `trim_kv` | 2 of 8 | 1.5 | 2 | 1.5 | 6 | no |"
    (line,) = table.served_lines("trim_kv", found)
    assert line.startswith("| `trim_kv` | held-out | 2 | 4 | 1.500 | 2.500 | **-1.000 [-1.000, -1.000]** | -0.200 [")
    found["served"]["nats"]["held-out, while decoding"] = NATS
    assert [line.split(" | ")[1] for line in table.served_lines("trim_kv", found)] == ["held-out", "held-out, while decoding"]


def test_gates_come_with_the_library():
    """All but DMC's, which are the model's own weights."""
    trained = {path.name.split("_smollm2")[0].removeprefix("train_") for path in table.files()}
    assert trained - set(SHIPPED) == {"dmc"}


@pytest.mark.parametrize("method", sorted(SHIPPED))
def test_what_comes_with_the_library_is_what_was_trained(method):
    """By its name, small, of text that no task reads; by its loss or where it is served better than the weights it began with, and
    worse on no text; the leaderboard takes it."""
    known, found = SHIPPED[method], resolve("smollm2-135m", method)
    assert found.origin == known[method]["artefact"]["origin"] and found.data["split"] == "train"
    assert all(np.isfinite(x).all() for x in found.tables.values())
    assert sum(path.stat().st_size for path in Path(known["shipped"]).rglob("*") if path.is_file()) < 4e6
    policy = getattr(kvjax.methods, method)(artefact="smollm2-135m")
    assert policy == getattr(kvjax.methods, method)(artefact=found)
    assert with_built_in([method], "smollm2-135m") == [f"{method}:artefact=smollm2-135m"]
    less = [table.learned_less(nats)["untrained"] for nats in known["served"]["nats"].values()]
    before, after = (known[method]["held_out"][at]["loss"] for at in ("before", "after"))
    assert (after < before or any(x.high < 0 for x in less)) and not any(x.low > 0 for x in less)
