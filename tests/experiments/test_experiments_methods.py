"""The catalogue of methods: read off the code, printed by the command line, and written into the documentation."""

import json
import sys
import types

import jax.numpy as jnp
import pytest

import experiments.docs as docs
import kvjax
from kvjax import catalogue
from tests.conftest import policy_of, prepared

every_method = pytest.mark.parametrize("name", kvjax.methods.names())


@every_method
def test_each_method_says_what_it_is(name):
    info = kvjax.methods.info(name)
    assert info.name == name and info.keeps and info.acts
    assert (info.arxiv is None) == (info.year is None)
    assert set(info.stages) <= set(catalogue.SLOTS)


def test_what_is_read_off_a_methods_file_and_its_policy():
    info = kvjax.methods.info("h2o", head_dim=64, dtype="float32")
    assert (info.title, info.keeps) == ("H2O", "heavy hitters and recent tokens")
    assert info.paper == "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models"
    assert (info.arxiv, info.year) == ("2306.14048", 2023)
    assert info.stages["score"] == "AccumulatedAttention" and info.stages["when"] == "Every"
    assert info.parameters == {"budget": "256", "recent_share": "0.5"}
    assert info.evidence == ("ColumnSums",) and info.requires == ()
    assert info.acts == "after the prompt and at every step"
    assert info.slot_nbytes == 2 * 64 * 4 + 2 + 4 and info.host_nbytes == 0
    assert info.differs.startswith("sums are averaged over the query heads")


def test_codes_and_values_in_host_memory():
    info = kvjax.methods.info("hcattention", head_dim=64)
    assert info.requires == ("calibration",) and info.acts == "nothing is evicted"
    assert info.host_nbytes == 2 * 64 and info.slot_nbytes < 2 * 64


@every_method
def test_bytes_of_a_slot_are_those_of_a_cache(lm, pre, name):
    policy = policy_of(name)
    if policy.encode.parted:  # whose slots differ
        assert kvjax.methods.info(name).slot_nbytes is None
        return
    device, _ = catalogue.slot_bytes(policy, 16, jnp.float32)
    assert device == kvjax.compress(prepared(lm, pre, name), policy).slot_nbytes


@pytest.mark.parametrize(
    "schedule, says",
    [
        (kvjax.AfterPrefill(), "after the prompt"),
        (kvjax.Every(8), "after the prompt and every 8 tokens"),
        (kvjax.Every(1, after_prefill=False), "at every step"),
        (kvjax.WhenFull(64), "after the prompt and when a head is over its budget by 64 slots"),
    ],
)
def test_when_a_policy_acts(schedule, says):
    assert catalogue.when(kvjax.Policy(when=schedule, budget=40)) == says
    assert catalogue.when(kvjax.methods.full()) == "nothing is evicted"


def test_a_method_that_wants_weights_is_told_by_its_file(monkeypatch):
    """Nothing is built: stages and times are those of the docstring, what it takes is a constant of the file."""
    module = types.ModuleType("kvjax.methods.gated")
    module.__doc__ = """Gated: what a gate keeps.

*A Gate*, arXiv 2512.00001.
Stages: score Retention(gate) · select TopK(recent) · when a head is full.
Differs: not
at all.
"""
    module.REQUIRES = ("training",)
    module.gated = lambda gate, budget=3: None
    monkeypatch.setitem(sys.modules, "kvjax.methods.gated", module)
    monkeypatch.setattr(kvjax.methods, "names", lambda: ["gated"])
    info = kvjax.methods.info("gated")
    assert info.stages == {"score": "Retention", "select": "TopK"} and info.acts == "when a head is full"
    assert info.requires == ("training",) and info.parameters == {"gate": "required", "budget": "3"}
    assert info.slot_nbytes is None and info.differs == "not at all."
    module.REQUIRES = ("luck",)
    with pytest.raises(ValueError, match="REQUIRES may name second pass, calibration, training; got luck"):
        kvjax.methods.info("gated")


def test_no_such_method():
    with pytest.raises(ValueError, match="no method is called 'snap'; there are ada_expected"):
        kvjax.methods.info("snap")


def test_the_command_lists_every_method(cli, tmp_path):
    code, out, err = cli("methods", "--json", tmp_path / "m.json", "--head-dim", 64)
    assert code == 0, err
    payload = json.loads((tmp_path / "m.json").read_text())
    assert [x["name"] for x in payload["methods"]] == kvjax.methods.names()
    assert payload["head_dim"] == 64 and payload["methods"][-1]["stages"]["score"]
    assert all(name in out for name in kvjax.methods.names())


@pytest.mark.parametrize("dtype", ["foo", "int8"])
def test_bytes_are_counted_in_dtypes_of_models_alone(cli, dtype):
    code, out, err = cli("methods", "--dtype", dtype)
    assert code == 2 and "--dtype" in err and "bfloat16" in err and not out


def test_the_documentation_is_up_to_date():
    """`python -m experiments.docs` writes all four files."""
    assert docs.PAGE.read_text() == docs.page()
    assert docs.README.read_text() == docs.with_board(docs.with_table(docs.README.read_text()))
    assert docs.GATES.read_text() == docs.with_gates(docs.GATES.read_text())
    assert docs.STAGES.read_text() == docs.with_tables(docs.STAGES.read_text())


def test_a_readme_without_the_marks_is_refused():
    with pytest.raises(ValueError, match="once each"):
        docs.with_table("# kvjax\n")
    again = docs.with_table(f"a\n{docs.BEGIN}\nstale words\n{docs.END}\nb\n")
    assert "stale words" not in again and again.startswith("a\n") and again.endswith("\nb\n") and docs.with_table(again) == again
