"""What a method's docstring says: its source as BibTeX, and an example that runs."""

import ast
import doctest
import importlib
import inspect
import re
import textwrap

import jax
import numpy as np
import pytest

import kvjax
import models
from models import llama
from tests.conftest import ids_of, toy_config
from tests.experiments.conftest import byte_tokenizer

every_method = pytest.mark.parametrize("name", kvjax.methods.names())


def docstring(name: str) -> str:
    return importlib.import_module(f"kvjax.methods.{name}").__doc__


def example(name: str) -> str:
    return textwrap.dedent(docstring(name).partition("Example:\n")[2])


def code(name: str) -> str:
    """The example's statements, whether or not it shows what they print."""
    session = doctest.DocTestParser().get_examples(example(name))
    return "".join(part.source for part in session) if session else example(name)


@every_method
def test_each_says_how_it_is_cited_and_called(name):
    published = re.search(r"arXiv \d{4}\.\d{4,5}", docstring(name))
    assert not published or re.search(r"BibTeX:\n    @\w+\{\w+,", docstring(name)), name
    calls = [node for node in ast.walk(ast.parse(code(name))) if isinstance(node, ast.Call)]
    assert any(isinstance(call.func, ast.Attribute) and call.func.attr == name for call in calls), name


@every_method
def test_what_differs_begins_a_line(name):
    """Where the catalogue's reader finds it."""
    assert docstring(name).count("Differs:") == len(re.findall(r"(?m)^Differs: \S", docstring(name))) <= 1, name


def for_any_model(name: str) -> bool:
    """Whether no argument is by default an artefact of one model."""
    defaults = [x.default for x in inspect.signature(getattr(kvjax.methods, name)).parameters.values()]
    return "smollm2-135m" not in defaults


@pytest.fixture(scope="module")
def reader() -> models.LanguageModel:
    """A toy model with heads as wide as a published one's, and a tokenizer for the methods that ask something of it."""
    config = llama.config(toy_config(vocab_size=257, head_dim=64))
    return models.random(config, seed=0).replace(tokenizer=byte_tokenizer())


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in kvjax.methods.names() if for_any_model(name)])
def test_each_example_runs(name, reader):
    scope = {
        "kvjax": kvjax, "jax": jax, "jnp": jax.numpy, "np": np, "lm": reader, "ids": ids_of(200),
        "texts": [ids_of(120, seed) for seed in range(2)],
    }  # fmt: skip
    session = doctest.DocTestParser().get_doctest(example(name), scope, name, None, None)
    if session.examples:
        assert doctest.DocTestRunner().run(session).failed == 0
    else:
        exec(compile(example(name), name, "exec"), scope)
        assert "policy" in scope or "out" in scope
