"""The best of a head's slots, and a random sample of the rest (NaCL)."""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float32, Int32

from kvjax.budget import whole_share
from kvjax.kernels.select_top import ordered, select_top
from kvjax.noise import gumbel_at
from kvjax.ranges import Count, Share, Whole
from kvjax.rank_keys import keys
from kvjax.stage import Selector
from kvjax.types import Mask, Number
from kvjax.view import LayerView, Ranking


def ends(n: Int32[Array, " b"], *, share: Number, least: int, sinks: Number) -> tuple[Int32[Array, " b"], Int32[Array, " b"]]:
    """(first, last) tokens that stay: p = max(floor(share · n), least) in all, min(sinks, p - 1) of them at the front."""
    p = jnp.minimum(jnp.maximum(whole_share(n, share), least), n)
    first = jnp.minimum(sinks, p - 1)
    return first, p - first


def sample(scores: Float32[Array, "*x n"], noise: Float32[Array, "*x n"], among: Bool[Array, "*x n"], count: Int32[Array, "*x"]):
    """`count` drawn without replacement with chances softmax(scores): the top of log p + Gumbel noise."""
    chances = jax.nn.log_softmax(jnp.where(among, scores, -jnp.inf), axis=-1)
    return select_top(jnp.where(among, ordered(chances + noise), jnp.uint32(0)), count)


@struct.dataclass
class BestAndSampled(Selector):
    """Of b slots floor(sampled · b) go to a sample of what the best leave over, with chances softmax(u).

    The others are the ends of the text and the highest scores. p = max(floor(ends · n), least) tokens are protected, at most
    `sinks` of them at the front, the others at the back.

    Args:
        sampled: share of the slots that is drawn.   seed: an integer.
        ends: protected tokens, as a share of the text.   sinks, least: see above.

    Noise belongs to a layer of the model, a head and a position.
    Source: NaCL, arXiv 2408.03675, algorithm 1.
    """

    sampled: Share = 0.35
    seed: Number = 0
    ends: Share = 0.01
    sinks: Count = 256
    least: Whole = struct.field(pytree_node=False, default=5)

    def protected(self, view: LayerView, budget: Int32[Array, "b h"]) -> Mask:
        first, last = (x[:, None, None] for x in ends(view.length, share=self.ends, least=self.least, sinks=self.sinks))
        return view.valid & ((view.pos < first) | (view.pos >= view.length[:, None, None] - last))

    def __call__(self, ranking: Ranking, budget: Int32[Array, "l b h"]) -> Bool[Array, "l b h n"]:
        budget, forced = jnp.maximum(budget, 1), (ranking.protected & ranking.valid).sum(-1)
        drawn = whole_share(budget, self.sampled)
        drawn = jnp.clip(drawn, 0, jnp.maximum(budget - forced, 0))
        best = select_top(keys(ranking), budget - drawn)
        layers, _, heads, _ = ranking.scores.shape
        layer, head = (jnp.arange(x, dtype=jnp.int32) for x in (layers, heads))
        noise = gumbel_at(self.seed, ranking.first + layer[:, None, None, None], head[:, None], ranking.pos)
        return best | sample(ranking.scores, noise, ranking.valid & ~best, drawn)
