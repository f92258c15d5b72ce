"""How surprising a token was, fading from turn to turn (SirLLM)."""

import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Float32, Int32

from kvjax.evidence import Evidence, Need, Surprisal
from kvjax.ranges import Count
from kvjax.score.per_slot import per_slot
from kvjax.stage import Scorer
from kvjax.types import Number, Scores
from kvjax.view import LayerView


def opened(
    e: Float32[Array, "b h n"], pos: Int32[Array, "b h n"], first: Int32[Array, " b"], turn: Int32[Array, " b"]
) -> Float32[Array, "b h n"]:
    """e with the first token of the turn first .. first + turn - 1 at the maximum of those that follow; 0 if none do."""
    at = pos - first[:, None, None]
    follow = (at > 0) & (at < turn[:, None, None])
    most = jnp.where(follow, e, 0.0).max(-1, keepdims=True)
    return jnp.where(at == 0, most, e)


@struct.dataclass
class Surprise(Scorer):
    """u_i = η^k · -log P(x_i | x_<i), k the turns that began since; the first token of a turn has the maximum of
    the others.

    The prompt is the first turn, then every `turn` tokens are one.

    Args:
        turn: tokens of a turn.   eta: what is left of a score when the next turn begins.
    """

    turn: Count = 64
    eta: Number = 1.0

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({Surprisal()})

    def init(self, shape: tuple[int, int, int]) -> Scores:
        return jnp.zeros(shape, jnp.float32)

    def observe(self, view: LayerView, evidence: Evidence) -> Scores:
        e = per_slot(view, view.state, evidence.of(Surprisal())[:, None])
        e = jnp.where(view.valid, e, 0.0)
        pos = jnp.where(view.valid, view.pos, -1)
        if view.since is None:
            return self.eta * opened(e, pos, jnp.zeros_like(view.length), view.length)
        before, turns = ((at - view.prompt) // self.turn for at in (view.since, view.length))

        def end(i: Int32[Array, ""], e: Scores) -> Scores:
            """After the i-th turn that these tokens end; what came behind it does not fade with it."""
            first = view.prompt + (before + i) * self.turn
            past = (before + i < turns)[:, None, None] & (pos < (first + self.turn)[:, None, None])
            return jnp.where(past, self.eta * opened(e, pos, first, jnp.full_like(first, self.turn)), e)

        return lax.fori_loop(0, (turns - before).max(), end, e)

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        del evidence
        return view.state
