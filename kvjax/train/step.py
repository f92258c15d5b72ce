"""One step of training, compiled: gradients of all parts of a batch, the optimiser, the projection."""

from functools import partial

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Bool, Int32, PyTree

from kvjax.train.batch import Batch
from kvjax.train.frozen import Frozen
from kvjax.train.learner import Graded, Learner, Moment


@struct.dataclass
class TrainState:
    """All that a run is at a step.

    Attributes:
        step: steps done.   weights: the trainable subtree.   optimiser: its state, for these weights alone.
    """

    step: Int32[Array, ""]
    weights: PyTree
    optimiser: PyTree


@partial(jax.jit, static_argnames=("learner", "steps"))
def begin(learner: Learner, frozen: Frozen, key: Array, *, steps: int) -> TrainState:
    """The state before the first step."""
    weights = learner.start(key, frozen)
    return TrainState(step=jnp.int32(0), weights=weights, optimiser=learner.optimiser(steps).init(weights))


@partial(jax.jit, static_argnames=("learner", "steps"))
def take_step(
    frozen: Frozen, learner: Learner, state: TrainState, batch: Batch, key: Array, *, steps: int
) -> tuple[TrainState, Graded, Bool[Array, ""]]:
    """(the state after it, what the losses said, whether all of it is finite).

    Args:
        batch: leaves [parts, b, t]; the gradient is the mean over the parts.
        key: of the run; a part of a step gets its own.
    """
    gradient, graded = _gradient(frozen, learner, state, batch, key, steps)
    updates, optimiser = learner.optimiser(steps).update(gradient, state.optimiser, state.weights)
    weights = learner.project(optax.apply_updates(state.weights, updates))
    whole = jnp.stack([jnp.isfinite(x).all() for x in jax.tree.leaves((graded, gradient, weights))]).all()
    return TrainState(step=state.step + 1, weights=weights, optimiser=optimiser), graded, whole


def _gradient(frozen: Frozen, learner: Learner, state: TrainState, batch: Batch, key: Array, steps: int) -> tuple[PyTree, Graded]:
    """Means over the parts."""
    of_step = jax.random.fold_in(key, state.step)
    parts = batch.tokens.shape[0]

    def loss(weights: PyTree, part: Batch, key: Array) -> tuple[Array, Graded]:
        graded = learner.loss(weights, frozen, part, Moment(step=state.step, key=key, steps=steps))
        return graded.loss, graded

    def one(total: PyTree, at: tuple[Batch, Array]) -> tuple[PyTree, Graded]:
        gradient, graded = jax.grad(loss, has_aux=True)(state.weights, *at)
        return jax.tree.map(jnp.add, total, gradient), graded

    zeros = jax.tree.map(jnp.zeros_like, state.weights)
    total, graded = jax.lax.scan(one, zeros, (batch, jax.random.split(of_step, parts)))
    return jax.tree.map(lambda x: x / parts, total), jax.tree.map(lambda x: x.mean(0), graded)


@partial(jax.jit, static_argnames="learner")
def grade(frozen: Frozen, learner: Learner, weights: PyTree, batch: Batch, moment: Moment) -> Graded:
    """What the losses say of one part [b t] of a batch, nothing learned."""
    return learner.loss(weights, frozen, batch, moment)
