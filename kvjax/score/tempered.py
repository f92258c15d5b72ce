"""Tempered, noisy attention summed over all queries (Keyformer)."""

import jax.numpy as jnp
from flax import struct

from kvjax.evidence import AttentionStatistics, Evidence, Need, Tempered
from kvjax.score.accumulated import AccumulatedAttention
from kvjax.types import Layer, Scores
from kvjax.view import LayerView


@struct.dataclass
class TemperedAttention(AccumulatedAttention):
    """u[j] = Σ_t mean_g softmax((x_t + ξ_t) / τ)[j] over the prompt's queries and every decoded one since.

    Only scores see noise and temperature; the output is ordinary attention.

    Args:
        rows: how a row is tempered: seed of the noise, None for none, and what τ gains a step.

    Source: Keyformer, arXiv 2403.09054, section 3.3; the group mean is this library's (the paper's models have no groups).
    """

    rows: Tempered = Tempered()

    def at(self, layer: Layer) -> "TemperedAttention":
        return self.replace(rows=self.rows.at(layer))

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({AttentionStatistics(self.rows)})

    def observe(self, view: LayerView, evidence: Evidence) -> Scores:
        return view.state + jnp.mean(evidence.of(AttentionStatistics(self.rows)), 2)
