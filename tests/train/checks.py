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


def slopes(lm, learner: Learner, *, draw: float, h: float, moment: Moment = NOW, seed: int = 1) -> tuple[float, float]:
    """(the derivative of the whole loss along a random direction, its central difference), near the weights before training."""
    rng, frozen, batch = np.random.default_rng(seed), Frozen.of(lm), part(lm, learner, texts(2, seed=5))
    weights = jax.tree.map(lambda w: w + draw * rng.normal(size=w.shape).astype(np.float32), untrained(lm, learner))
    along = jax.tree.map(lambda w: jnp.asarray(rng.normal(size=w.shape), jnp.float32), weights)
    graded = jax.jit(jax.value_and_grad(lambda weights: learner.loss(weights, frozen, batch, moment).loss))
    up, down = (graded(jax.tree.map(lambda w, d, h=h: w + h * d, weights, along))[0] for h in (h, -h))
    slope = graded(weights)[1]
    exact = sum(jnp.vdot(a, b) for a, b in zip(jax.tree.leaves(slope), jax.tree.leaves(along), strict=True))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(slope))
    return float(exact), float((up - down) / (2 * h))


def falls(lm, learner: Learner, weights) -> tuple[dict, dict]:
    """What the losses say of held-out texts, before and after."""
    held_out = Examples(texts(4, seed=9), rows=4)
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
