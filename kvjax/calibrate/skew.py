"""Matrices that gather what matters of a head's queries in few columns (InfiniGen)."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32

from kvjax.evidence.query_spread import QuerySpread
from kvjax.prefill.run import prefill
from kvjax.protocols import LanguageModel


def skew_of(outer: Float32[Array, "*h d d"]) -> Float32[Array, "*h d d"]:
    """A: right singular vectors of the queries, largest singular value first, from Σ q q'."""
    return jnp.linalg.eigh(outer)[1][..., ::-1]


def skew(lm: LanguageModel, prompts: object) -> Float32[np.ndarray, "l h d d"]:
    """A for every KV head, of the queries of all its query heads, for `kvjax.methods.infinigen(skew=...)`.

    q A · k A = q · k for every query and key.
    Source: InfiniGen, arXiv 2406.19707, section 4.2. Differs: queries are rotated ones, as they meet the keys; sums are kept in
    place of the queries; the order of the columns, which are chosen by weight later, is that of the queries alone.
    """
    pre = prefill(lm, prompts, needs={QuerySpread()})
    layers = zip(*(row.evidence for row in pre.rows), strict=True)
    spreads = [jax.tree.map(lambda *x: sum(x), *(e.of(QuerySpread()) for e in rows)) for rows in layers]
    return np.asarray(jnp.concatenate([skew_of(spread.outer.sum(2)) for spread in spreads]))
