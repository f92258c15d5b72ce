"""Scores as one array, to be looked at or differentiated."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32

from kvjax import evidence as ev
from kvjax.compress.score_prompt import score_row
from kvjax.policy import Policy
from kvjax.prefill.prefilled import Prefilled
from kvjax.stage import Scorer
from kvjax.view import LayerView


def scores(pre: Prefilled, scorer: Scorer) -> Float32[Array, "l b h n"]:
    """What a scorer makes of every token of prompts, in all layers: higher is kept first, -inf behind a prompt's end.

    Works inside `jax.jit`, `jax.vmap` and `jax.grad`, and is differentiable in the scorer's numbers and weights as far as its
    `score` is, and in what `pre` holds. What the prefill recorded is fixed by then: of a gate that reads hidden states
    (`kvjax.gates`) the values are evidence, and its weights are trained through `kvjax.train`.

    Args:
        pre: prompts from `kvjax.prefill(lm, ids, needs=scorer)`, or of a policy that has it.
        scorer: a stage such as `policy.score`.

    Returns:
        float32 [l, b, h, n], n tokens of the longest prompt, padded to its bucket.

    Raises:
        TypeError: not prompts, or not a scorer.
        ValueError: evidence that the prefill did not record, a scorer that does not fit the model or the prompts.

    Example:
        >>> loss = lambda alpha: -jax.nn.softmax(kvjax.scores(pre, MyScorer(alpha)))[..., needle].sum()
        >>> slope = jax.grad(loss)(0.5)
    """
    _check(pre, scorer)
    policy = Policy(score=scorer)
    rows = [score_row(row, policy, pre.layers).scores for row in pre.rows]
    n = max(row.shape[-1] for row in rows)
    return jnp.concatenate([_padded(x, row.length, row.pos, n) for x, row in zip(rows, pre.rows, strict=True)], axis=1)


def _padded(x: Float32[Array, "l 1 h _"], length: Array, pos: Array | None, n: int) -> Float32[Array, "l 1 h n"]:
    valid = LayerView.of_prompt(length, x.shape[1:], pos=pos).valid
    masked = jnp.where(valid, x, -jnp.inf)
    return jnp.pad(masked, ((0, 0), (0, 0), (0, 0), (0, n - x.shape[-1])), constant_values=-jnp.inf)


def _check(pre: Prefilled, scorer: Scorer) -> None:
    """Raise TypeError or ValueError for what can be told before anything is traced."""
    if not isinstance(pre, Prefilled):
        raise TypeError(f"expected prompts from kvjax.prefill(lm, ids); got {type(pre).__name__}")
    if not isinstance(scorer, Scorer):
        raise TypeError(f"expected a scorer such as kvjax.score.WindowAttention(), or policy.score; got {scorer!r}")
    lacking = ev.missing(pre.needs, scorer.needs)
    if lacking:
        raise ValueError(
            f"{type(scorer).__name__} reads {', '.join(map(str, lacking))}, which this prefill did not record: run "
            "kvjax.prefill(lm, ids, needs=kvjax.Policy(score=scorer))"
        )
    if not any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((scorer, [row.length for row in pre.rows]))):
        for length in pre.lengths:
            scorer.check(pre.decoder, length, length)
