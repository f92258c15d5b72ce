"""Words into policies and budgets, and what is said when they are wrong."""

import re

import pytest

import kvjax
from experiments.commands.calibrate import parse_settings
from experiments.kept.held import policies_of
from experiments.plan_words import grid, parse_budgets, parse_lengths
from experiments.policies import parse_budget, parse_policy, policy_of, split_specs
from kvjax.artefacts.artefact import resolve
from kvjax.budget import EVERYTHING


@pytest.mark.parametrize("text, value", [("256", 256), ("1", 1), ("0.5", 0.5), ("1.0", 1.0), (" 8 ", 8)])
def test_budgets(text, value):
    found = parse_budget(text)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize("text", ["0", "-3", "0.0", "-0.5", "1.5", "nan", "inf", "half", ""])
def test_bad_budgets_are_named(text):
    with pytest.raises(ValueError, match="budget") as error:
        parse_budget(text)
    assert repr(text) in str(error.value)


def test_a_budget_given_twice_is_measured_once_and_one_is_a_slot_or_everything():
    assert parse_budgets("0.5,8, 0.5,8") == (0.5, 8)
    assert parse_budgets("1,0.5") == (1, 0.5) and parse_budgets("1.0,1.0") == (1.0,)
    with pytest.raises(ValueError, match="^--budgets: 1 is one slot per KV head and 1.0 the whole prompt"):
        parse_budgets("0.5,1,1.0")
    with pytest.raises(ValueError, match="^--budgets is empty"):
        parse_budgets(" ,")


def test_one_policy_under_two_names_is_refused_and_twice_under_one_is_measured_once():
    assert [(cell.name, cell.budget) for cell in grid("h2o,h2o,full", "0.5,8")] == [("h2o", 0.5), ("h2o", 8), ("full", 1.0)]
    usual = f"snapkv:window={kvjax.methods.snapkv(budget=8).score.window}"
    with pytest.raises(ValueError, match=f"^--policies: 'snapkv' and '{usual}' are the same policy: name one of them$"):
        grid(f"snapkv,{usual}", "0.5")


def test_a_length_given_twice_is_measured_once():
    assert parse_lengths("1024, 512,1024") == (1024, 512)


def test_a_policy_gets_its_parameters_and_budget():
    named = parse_policy("snapkv:window=16", 64)
    assert named.policy == kvjax.methods.snapkv(budget=64, window=16)
    assert (named.name, named.budget) == ("snapkv:window=16", 64)


def test_full_takes_no_budget():
    assert parse_policy("full", 7).budget == 1.0
    assert parse_policy("h2o", 7).takes_budget and not parse_policy("full", 7).takes_budget
    assert policy_of("full", None).budget == policy_of("full", "1.0").budget == policy_of("full", None, usual=7).budget == 1.0
    assert policy_of("h2o", None, usual=7).budget == 7 and policy_of("h2o", "9", usual=7).budget == 9
    for budget in ("7", "0.5"):
        with pytest.raises(ValueError, match="^policy 'full' takes no budget, got --budget '.*': leave it out$"):
            policy_of("full", budget)


def test_one_budget_for_several_policies_is_of_those_that_take_one():
    assert [named.budget for named in policies_of(["full", "h2o"], ["9"])] == [1.0, 9]
    assert [named.budget for named in policies_of(["full", "h2o"], ["1.0", "9"])] == [1.0, 9]
    with pytest.raises(ValueError, match="^policy 'full' takes no budget"):
        policies_of(["full", "h2o"], ["8", "9"])


#: What a method cannot do without.
_LEARNED = (
    "attention_gate", "dms", "duo_attention", "kvzap", "less", "lococo", "locret", "lookahead_kv", "make_each_token_count",
    "trim_kv",
)  # fmt: skip
ASKED_FOR = dict.fromkeys(_LEARNED, "artefact")
WHOLE_NUMBERS = ("arkv",)  # budgets in slots alone


@pytest.mark.parametrize("name", sorted(set(kvjax.methods.names()) - set(ASKED_FOR)))
def test_every_method_can_be_named(name):
    assert parse_policy(name, 64 if name in WHOLE_NUMBERS else 0.5).policy.budget in (0.5, 1.0, EVERYTHING)


@pytest.mark.parametrize("name", ASKED_FOR)
def test_what_is_not_built_in_is_asked_for_by_name(name):
    with pytest.raises(ValueError, match=f"{name}.*'{ASKED_FOR[name]}'"):
        parse_policy(name, 0.5)


def test_an_unknown_name_lists_the_known():
    with pytest.raises(ValueError, match="unknown policy 'snap'.*snapkv.*streaming_llm"):
        parse_policy("snap", 0.5)


@pytest.mark.parametrize("spec", ["snapkv:windw=3", "snapkv:window", "snapkv:budget=3"])
def test_a_wrong_parameter_lists_the_right_ones(spec):
    with pytest.raises(ValueError, match="it takes: window$"):
        parse_policy(spec, 0.5)


def test_a_parameter_given_twice_is_called_so():
    with pytest.raises(ValueError, match="^policy 'snapkv': window is given twice$"):
        parse_policy("snapkv:window=32,window=16", 0.5)
    with pytest.raises(ValueError, match="^--set: samples is given twice$"):
        parse_settings("kvtc", {"samples": 3}, ["samples=1", "samples=2"])


@pytest.mark.parametrize("name", ASKED_FOR)
def test_what_is_asked_for_can_be_typed_as_it_is_said(name):
    with pytest.raises(ValueError, match=f"for example {name}:artefact=smollm2-135m, in Python {name}") as error:
        parse_policy(name, 0.5)
    typed = re.search(r"for example ([^ ,]+),", str(error.value)).group(1)
    assert parse_policy(typed, 0.5).name == typed


def test_a_method_without_a_built_in_artefact_says_what_makes_one():
    with pytest.raises(ValueError, match="dmc:artefact=FOLDER, in Python dmc.artefact='FOLDER'.; .* `kvjax train dmc` makes one$"):
        resolve(None, "dmc")


def test_lists_of_policies_keep_their_parameters_together():
    assert split_specs("full, snapkv:window=8,pool=1,h2o") == ["full", "snapkv:window=8,pool=1", "h2o"]
