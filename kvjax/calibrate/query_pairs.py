"""Where a model's queries gather before rotation, from text (TriAttention)."""

import jax
import numpy as np
from jaxtyping import Float32

from kvjax.evidence.query_pairs import QueryPairs
from kvjax.prefill.run import prefill
from kvjax.protocols import LanguageModel


def query_pairs(lm: LanguageModel, prompts: object) -> tuple[Float32[np.ndarray, "l h g d"], Float32[np.ndarray, "l h g half"]]:
    """(mean, norms) of the queries of all prompts, for `kvjax.methods.triattention(mean=..., norms=...)`.

    Source: TriAttention, arXiv 2604.04921. Queries are those after a family's query norm, which the release leaves out.
    """
    pre = prefill(lm, prompts, needs={QueryPairs()})
    layers = zip(*(row.evidence for row in pre.rows), strict=True)
    sums = [jax.tree.map(lambda *x: sum(x), *(e.of(QueryPairs()) for e in rows)) for rows in layers]
    means, norms = zip(*(s.means() for s in sums), strict=True)
    return np.concatenate(means), np.concatenate(norms)
