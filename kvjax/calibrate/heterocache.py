"""The tables of HeteroCache, measured by running a model: how steady each KV head's focus is, and who looks at the same tokens.

Axis letters: s samples, t decode steps (0: the last prompt query), l layers, h KV heads, g query heads of one, n prompt positions.
"""

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32

from kvjax.calibrate import roles
from kvjax.calibrate.attention_rows import rows_of, watch
from kvjax.evidence import WindowQueries
from kvjax.kernels.window_scores import window_scores
from kvjax.prefill.run import Prefilled, prefill
from kvjax.protocols import LanguageModel
from kvjax.score import AvgPool
from kvjax.types import Function


def silent(done: int, total: int) -> None:
    """Report nothing."""


def last_rows(pre: Prefilled) -> Float32[Array, "l h n"]:
    """Attention of the prompt's last query, the mean over each group (t = 0)."""
    (row,), rows = pre.rows, []
    for k, seen in zip(row.k, row.evidence, strict=True):
        n = jnp.broadcast_to(jnp.arange(k.shape[2], dtype=jnp.int32), k.shape[:3])
        a = window_scores(
            seen.window_queries(1), k, pos=n, valid=n < row.length[:, None, None], length=row.length, window=seen.window
        )
        rows.append(a[0].mean(1))
    return jnp.stack(rows)[..., : pre.lengths[0]]


@partial(jax.jit, static_argnames=("n", "heads", "k"))
def _sets(rows: Float32[Array, "l q m"], pool: Function, *, n: int, heads: int, k: int) -> Bool[Array, "l h n"]:
    """Important prompt tokens of each KV head from the rows of its query heads."""
    mean = rows.reshape(rows.shape[0], heads, -1, rows.shape[-1]).mean(2)
    return roles.important(mean[..., :n], k, pool)


_overlap, _pairwise = jax.jit(roles.overlap), jax.jit(roles.pairwise)


def sample_overlaps(lm: LanguageModel, ids: Sequence[int], *, steps: int, k: int, pool: Function) -> tuple[np.ndarray, np.ndarray]:
    """(overlaps with the prompt's last query [t l h], overlaps of pairs [t+1 l h h]) over `steps` greedy steps, full cache."""
    pre = prefill(lm, list(ids), needs=frozenset({WindowQueries(1)}))
    rows, n, heads = last_rows(pre), len(ids), lm.decoder.heads
    first = _sets(rows.reshape(rows.shape[0], heads, -1), pool, n=n, heads=heads, k=k)
    stable, pairs = [], [np.asarray(_pairwise(first))]
    for _, cache in watch(lm, pre, None, steps=steps, stop=()):
        now = _sets(rows_of(cache), pool, n=n, heads=heads, k=k)
        stable.append(np.asarray(_overlap(now, first)))
        pairs.append(np.asarray(_pairwise(now)))
    return np.stack(stable), np.stack(pairs)


def head_roles(
    lm: LanguageModel, prompts: Sequence[Sequence[int]], *, steps: int = 100, k: int = 1024,
    pool: Function = AvgPool(5), theta_stab: float = 0.5,
    theta_sim: float = 0.5, similarity: Function = roles.AtPrefill(), least: float = 0.0,
    progress: Callable[[int, int], None] = silent,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Roles, clusters, stabilities and shares of every KV head.

    Args:
        prompts: token ids of each sample, more than k tokens each.   steps: T, greedy decode steps with the full cache.
        k: tokens a head is said to look at.   pool: smoothing along the tokens.
        theta_stab, theta_sim: thresholds of stability and similarity.
        similarity: AtPrefill() (the released code, published artefacts) or MedianOverSteps() (the paper's equation 3 for pairs).
        least: stability that counts at least, where a head with none would take the whole budget.
        progress: called with (prompts done, prompts in all).

    Returns:
        "role" int8, "alloc_ratio", "stability" float32, "cluster" int32, all [l, h] (see `roles.tables`).

    Raises:
        ValueError: no prompts, no steps, or a prompt of at most k tokens, on which all heads would be stable and alike.
    Source: HeteroCache, arXiv 2601.13684, section 4.2 and appendix C; the mean over a group is the paper's.
    """
    if not prompts or steps < 1 or k < 1:
        raise ValueError(f"expected prompts, steps >= 1 and k >= 1; got {len(prompts)} prompts, steps={steps}, k={k}")
    shortest = min(map(len, prompts))
    if shortest <= k:
        raise ValueError(f"a prompt of {shortest} tokens says nothing about the best k={k}: use longer prompts or a smaller k")
    stable, pairs = [], []
    for done, ids in enumerate(prompts, 1):
        s, p = sample_overlaps(lm, ids, steps=steps, k=k, pool=pool)
        stable.append(s), pairs.append(p)
        progress(done, len(prompts))
    thresholds = dict(theta_stab=theta_stab, theta_sim=theta_sim, least=least)
    return roles.tables(roles.stability(np.stack(stable)), similarity(np.stack(pairs)), **thresholds)
