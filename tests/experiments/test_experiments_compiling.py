"""Progress says when a program compiles, and is silent about it otherwise."""

import logging
from io import StringIO

import jax
import jax.numpy as jnp
import pytest
from rich.console import Console
from rich.status import Status

from experiments import console
from experiments.compiling import heard


def fresh(name: float):
    """A program that was never compiled before."""
    return jax.jit(lambda x: x * name + 1)


def test_a_program_is_heard_when_it_begins_and_when_it_is_there():
    told, x = [], jnp.ones(3)
    with heard(told.append):
        program = fresh(3.25)
        program(x)
        first = list(told)
        program(x)
    assert first == told == [True, False]
    fresh(4.25)(x)
    assert told == first


def test_logging_is_as_before_and_shows_nothing_more(caplog):
    loggers = [logging.getLogger(name) for name in ("jax._src.interpreters.pxla", "jax._src.dispatch")]
    before = [(logger.level, list(logger.filters)) for logger in loggers]
    with pytest.raises(KeyboardInterrupt), heard(lambda compiling: None):
        fresh(5.25)(jnp.ones(3))
        raise KeyboardInterrupt
    assert [(logger.level, list(logger.filters)) for logger in loggers] == before
    assert not [record for record in caplog.records if "ompil" in record.getMessage()]


@pytest.fixture
def screen(monkeypatch) -> StringIO:
    """What a terminal behind stderr gets."""
    file = StringIO()
    monkeypatch.setattr(console, "err", Console(file=file, force_terminal=True, width=120))
    return file


def test_a_bar_says_so_while_it_lasts(screen, monkeypatch):
    seen = []

    def look(compiling):
        bar.refresh()
        seen.append((compiling, "compiling" in screen.getvalue()))

    tell = console.Activity.tell
    monkeypatch.setattr(console.Activity, "tell", lambda self, compiling: (tell(self, compiling), look(compiling)))
    with console.progress() as bar:
        bar.add_task("cells", total=2)
        fresh(6.25)(jnp.ones(3))
        screen.truncate(0)
        bar.refresh()
        assert "compiling" not in screen.getvalue()
    assert seen[0] == (True, True) and seen[-1][0] is False


def test_a_status_says_so_while_it_lasts(screen, monkeypatch):
    said, update = [], Status.update
    monkeypatch.setattr(Status, "update", lambda self, what: (said.append(what), update(self, what)))
    with console.working("reading"):
        fresh(7.25)(jnp.ones(3))
    assert said == ["reading: compiling", "reading"] and "reading" in screen.getvalue()
