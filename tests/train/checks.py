"""What every learner is held to, on the toy model."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kvjax.artefacts.artefact import load, save
from kvjax.train import Examples, Frozen, Learner, Moment, artefact_of, mean_grade, stacked, train, untrained
from tests.train.conftest import Cut, cut_at, same, texts

NOW = Moment(step=jnp.int32(3), key=jax.random.key(0), steps=4)
STEPS = 10


def part(lm, learner: Learner, examples, length=None):
    """Examples as one part of a batch, measured."""
    return jax.tree.map(lambda x: x[0], learner.measure(lm, stacked(examples, length=length)))


def source() -> Examples:
    return Examples(texts(12), rows=2, parts=2)


def near(lm, learner: Learner, draw: float):
    """Weights near those before training."""
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda w: w + draw * rng.normal(size=w.shape).astype(np.float32), untrained(lm, learner))


def slopes(lm, learner: Learner, *, draw: float, h: float, of: Learner | None = None, moment: Moment = NOW) -> tuple[float, float]:
    """(the derivative of the whole loss near the weights before training, the central difference of the loss `of`, by default its
    own), along a direction that is half random, half the gradient itself."""
    frozen, batch, weights = Frozen.of(lm), part(lm, learner, texts(2, seed=5)), near(lm, learner, draw)
    loss = lambda learner, weights: learner.loss(weights, frozen, batch, moment).loss  # noqa: E731
    slope = jax.jit(jax.grad(loss, argnums=1), static_argnums=0)(learner, weights)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(slope))
    rng = np.random.default_rng(2)
    along = jax.tree.map(lambda w: rng.normal(size=w.shape).astype(np.float32), weights)
    dot = lambda a, b: sum(jnp.vdot(*x) for x in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))  # noqa: E731
    steep = jnp.sqrt(dot(along, along) / dot(slope, slope))
    along = jax.tree.map(lambda d, g: d + steep * g, along, slope)
    at = jax.jit(loss, static_argnums=0)
    up, down = (at(of or learner, jax.tree.map(lambda w, d, h=h: w + h * d, weights, along)) for h in (h, -h))
    return float(dot(slope, along)), float((up - down) / (2 * h))


def falls(lm, learner: Learner, weights, examples=None) -> tuple[dict, dict]:
    """What the losses say of held-out texts, or of those given, before and after."""
    given = texts(4, seed=9) if examples is None else examples
    held_out = Examples(given, rows=len(given))
    return tuple(mean_grade(lm, learner, w, held_out, batches=1) for w in (untrained(lm, learner), weights))


def cut_and_taken_up(lm, learner: Learner, folder: Path, whole) -> None:
    """A run that is cut after step 7 ends with the bits of the whole one."""
    how = dict(steps=STEPS, folder=folder, every=3)
    with pytest.raises(Cut):
        train(lm, learner, source(), report=cut_at(7), **how)
    again = train(lm, learner, source(), resume=True, **how)
    assert same(again.weights, whole.weights) and again.log == whole.log


def kept_in(folder: Path, lm, learner: Learner, weights) -> Path:
    """Weights as an artefact, read again to the bit, and refused for another method and model."""
    data = {"source": "random", "sha256": "0", "samples": 12, "tokens": 480}
    save(artefact_of(lm, learner, weights, data=data, run={"steps": STEPS, "seed": 0}), folder)
    found = load(folder, learner.method, lm)
    assert found.settings["budget"] == learner.budget and found.settings["steps"] == STEPS
    flat = lambda x: {jax.tree_util.keystr(at, simple=True, separator="."): w for at, w in jax.tree_util.tree_leaves_with_path(x)}  # noqa: E731
    for name, x in flat(weights).items():
        np.testing.assert_array_equal(found.tables[name], x)
    with pytest.raises(ValueError, match=f"name: the model has 'another'.*kvjax train {learner.method}"):
        load(folder, learner.method, lm.replace(name="another"))
    with pytest.raises(ValueError, match="method: wanted trim_kv"):
        load(folder, "trim_kv", lm)
    return folder
