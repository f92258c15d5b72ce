"""The prompt pinned while decoding: its tokens go before all that were decoded."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import PyTree

from kvjax.evidence import Evidence
from kvjax.score.around import Around
from kvjax.score.position import Recency
from kvjax.stage import Scorer
from kvjax.types import Scores
from kvjax.view import LayerView


@struct.dataclass
class PromptFirst(Around):
    """The scores of another scorer; once tokens have been decoded, the prompt's go before them. One number a slot is stored.

    A prompt that does not fit the budget by itself is cut by the scores when it has been read; while decoding it loses its latest
    tokens to those a selector protects, and no other decoded token outlives an eviction.

    Args:
        score_of: the scorer.
    """

    score_of: Scorer = Recency()

    def init(self, shape: tuple[int, int, int]) -> tuple[PyTree, Scores]:
        return self.score_of.init(shape), jnp.zeros(shape, jnp.float32)

    def observe(self, view: LayerView, evidence: Evidence) -> tuple[PyTree, Scores]:
        """Tokens are the prompt's where nothing was: a step's tokens come with zeros, beside slots that are marked."""
        inner, mark = view.state
        prompt = ~((mark != 0) & view.valid).any(-1, keepdims=True)
        mark = jnp.where(prompt, 1.0, mark)
        return self.score_of.observe(view.replace(state=inner), evidence), mark

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        inner, mark = view.state
        u = self.score_of.score(view.replace(state=inner), evidence)
        decoded = (view.valid & (mark == 0)).any(-1, keepdims=True)
        return jnp.where(decoded & (mark != 0), jnp.inf, u)
