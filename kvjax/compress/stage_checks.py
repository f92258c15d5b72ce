"""What a stage gave, held against what its kind promises: one that breaks it is named, and nothing goes on silently."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int32, PyTree

from kvjax.budget import number_of, slots_of
from kvjax.compress.decision import Decision
from kvjax.policy import Policy
from kvjax.prefill.prefilled import Prefilled
from kvjax.stage import Allocator, Scorer


def check_traced(*values: PyTree) -> None:
    """Raise TypeError under `jit`, `vmap` or `grad`: plans are read back, and a derivative would be 0 without a word."""
    if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(values)):
        raise TypeError(
            "kvjax.compress reads its plan back from the device, so that it works under none of jax.jit, vmap and grad: use "
            "kvjax.core.compress, or kvjax.scores for a gradient of scores"
        )


def check_room(pre: Prefilled, policy: Policy, slots: int) -> None:
    """Raise ValueError where a budget that is known leaves a prompt more slots per KV head than `slots`; traced ones pass."""
    budget, cut = number_of(policy.budget), policy.when.after_prefill
    known = policy.allocate.exact and policy.select.exact and not policy.allocate.given
    if cut and not (known and isinstance(budget, int | float)):
        return
    asked = (lambda length: min(slots_of(budget, length), length)) if cut else int
    for row in pre.rows:
        if isinstance(row.length, jax.core.Tracer) or asked(row.k[0].shape[2]) <= slots:  # no length is read back for what fits
            continue
        length = int(np.asarray(row.length)[0])
        if asked(length) > slots:
            raise ValueError(
                f"a prompt of {length} tokens leaves {asked(length)} slots per KV head under a budget of {budget}, more than "
                f"slots={slots}: give more slots, tokens to come included, or a smaller budget"
            )


def check_scores(scorer: Scorer, scores: Array, shape: tuple[int, int, int]) -> None:
    """Raise ValueError, while a scorer is traced, where it gave no number a slot."""
    if scores.shape != shape or not jnp.issubdtype(scores.dtype, jnp.floating):
        raise ValueError(
            f"{type(scorer).__name__}.score must give a float32 for every slot, {list(shape)}; got {scores.dtype} "
            f"{list(scores.shape)}"
        )


def check_budgets(allocator: Allocator, budget: Array, shape: tuple[int, int, int]) -> None:
    """Raise ValueError, while an allocator is traced, where it gave no number a head."""
    if budget.shape != shape:
        raise ValueError(f"{type(allocator).__name__} must give the slots of every head, {list(shape)}; got {list(budget.shape)}")


def check_decided(pre: Prefilled, policy: Policy, decided: Sequence[Decision]) -> None:
    """Raise ValueError for scores that are no numbers, and for budgets that do not sum to what was asked for."""
    for row, decision in zip(pre.rows, decided, strict=True):
        if bool(_no_number(decision.scores, row.length)):
            name = type(policy.score).__name__
            raise ValueError(f"{name} scored slots as NaN: mask invalid slots with where, and look for 0 / 0")
        if policy.allocate.exact and not policy.allocate.given and decision.mean_budget < int(row.length[0]):
            _check_sum(policy.allocate, np.asarray(decision.budget), decision.mean_budget)


def _check_sum(allocator: Allocator, budget: Int32[np.ndarray, "l 1 h"], mean: int) -> None:
    if budget.sum() != mean * budget.size:
        raise ValueError(
            f"{type(allocator).__name__} gave {budget.sum()} slots in all where {mean} a head, {mean * budget.size}, were asked "
            "for: sum to the total, or say exact = False in the class"
        )


@jax.jit
def _no_number(scores: Float32[Array, "l b h n"], length: Int32[Array, " b"]) -> Bool[Array, ""]:
    valid = jnp.arange(scores.shape[-1]) < length[:, None, None]
    return (jnp.isnan(scores) & valid).any()
