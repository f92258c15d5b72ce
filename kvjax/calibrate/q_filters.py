"""Filters of Q-Filters from text: the directions that queries share, those of a group averaged."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32

from kvjax.evidence.query_spread import QuerySpread
from kvjax.prefill.run import prefill
from kvjax.protocols import LanguageModel
from kvjax.score.query_filter import query_direction


def q_filters(lm: LanguageModel, prompts: object) -> Float32[np.ndarray, "l h d"]:
    """`query_direction` of the queries of all prompts, for `kvjax.methods.qfilters(filters=...)`.

    Source: Q-Filters, arXiv 2503.02812, section 3.2. Differs: sums are kept in place of the queries, all tokens count. So a head's
    filter turns away from the sum of its queries, in the release from most of them.
    """
    pre = prefill(lm, prompts, needs={QuerySpread()})
    layers = zip(*(row.evidence for row in pre.rows), strict=True)
    spreads = (jax.tree.map(lambda *x: sum(x), *(e.of(QuerySpread()) for e in rows)) for rows in layers)
    return np.asarray(jnp.concatenate([query_direction(spread) for spread in spreads]))
