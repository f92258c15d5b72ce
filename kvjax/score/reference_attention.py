"""What reference queries make of every key: its share of their attention, or its place in a pursuit of their mass."""

import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Float32, Int32

from kvjax.evidence import Evidence, Need, WindowQueries
from kvjax.kernels.select_top import ordered
from kvjax.least_squares import least_squares
from kvjax.norms import root
from kvjax.ranges import Size
from kvjax.reference_queries import Seen, by_head, look, recorded
from kvjax.score.pool import NoPool
from kvjax.stage import Scorer
from kvjax.types import Function, Number, Scores
from kvjax.view import LayerView

#: The least weight of a chosen key.
TINY = 1e-12


@struct.dataclass
class RootMeanSquare:
    """sqrt(mean_i p_i²)."""

    def __call__(self, seen: Seen) -> Float32[Array, " n"]:
        return root((seen.p * seen.p).sum(0) / jnp.maximum(seen.real.sum(), 1))


@struct.dataclass
class MeanShare:
    """mean_i p_i."""

    def __call__(self, seen: Seen) -> Float32[Array, " n"]:
        return seen.p.sum(0) / jnp.maximum(seen.real.sum(), 1)


@struct.dataclass
class LargestShare:
    """max_i p_i."""

    def __call__(self, seen: Seen) -> Float32[Array, " n"]:
        return seen.p.max(0)


@struct.dataclass
class ReferenceAttention(Scorer):
    """u = pool(share_i p_i), p = softmax(q k / sqrt(d)) of every reference query over all keys, without a causal mask.

    Args:
        queries: a need whose evidence is queries [b, h, g, m, d]: WindowQueries(m), or Probed(WindowQueries(m)) of another text.
        share: RootMeanSquare(), MeanShare() or LargestShare().   pool: along the tokens.

    Source: Attention Matching, arXiv 2602.16284, highest-attention keys.
    """

    queries: Need = WindowQueries(512)
    share: Number = RootMeanSquare()
    pool: Function = NoPool()

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({self.queries})

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        shares = by_head(lambda *x: self.share(look(*x)), recorded(self.queries, evidence), view.k, view.valid)
        return self.pool(shares)


@struct.dataclass
class Pursuit(Scorer):
    """Orthogonal matching pursuit of the queries' row sums: a key's score falls with the round that chose it.

    A round takes the `picks` keys of largest e_j · (total - E_chosen B), over ‖e_j‖ if `normalised`; weights B >= 1e-12 are fitted
    again in the first and every `refit`-th round, and new keys weigh 1e-12 in between. Equal gains: the lower position.

    Args:
        most: keys that are chosen; behind them keys follow by the root mean square of their shares.

    Source: Attention Matching, arXiv 2602.16284, OMP.
    """

    queries: Need = WindowQueries(512)
    most: Size = struct.field(pytree_node=False, default=256)
    picks: Size = struct.field(pytree_node=False, default=1)
    refit: Size = struct.field(pytree_node=False, default=1)
    normalised: bool = struct.field(pytree_node=False, default=False)

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({self.queries})

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        return by_head(self._of_head, recorded(self.queries, evidence), view.k, view.valid)

    def _of_head(self, q: Array, k: Array, valid: Array) -> Float32[Array, " n"]:
        seen = look(q, k, valid)
        most = min(self.most, k.shape[0])
        order = chosen(seen, valid, most=most, picks=self.picks, refit=self.refit, normalised=self.normalised)
        place = 2.0 + most - jnp.arange(most, dtype=jnp.float32)
        return RootMeanSquare()(seen).at[order].set(place)


def chosen(seen: Seen, valid: Array, *, most: int, picks: int, refit: int, normalised: bool) -> Int32[Array, " m"]:
    """The first `most` keys of the pursuit, in order."""
    n, place = valid.shape[0], jnp.arange(most, dtype=jnp.int32)
    norm = jnp.maximum(root((seen.e * seen.e).sum(0)), 1e-30) if normalised else 1.0

    def one(r, state):
        order, b, count, taken = state
        some = place < count
        left = seen.total - jnp.matmul(jnp.where(some, seen.e[:, order], 0.0), b, precision="highest")
        gain = ordered(jnp.matmul(left, seen.e, precision="highest") / norm)
        gain = jnp.where(valid, gain, jnp.uint32(1))
        _, best = lax.top_k(jnp.where(taken, jnp.uint32(0), gain), picks)
        order = order.at[count + jnp.arange(picks)].set(best.astype(jnp.int32), mode="drop")
        taken = taken.at[best].set(True)
        count = jnp.minimum(count + picks, most)
        some, columns = place < count, seen.e[:, order]

        def again():
            return least_squares(columns, seen.total[:, None], some)[:, 0]

        b = lax.cond(r % refit == 0, again, lambda: b)
        return order, jnp.where(some, jnp.maximum(b, TINY), 0.0), count, taken

    start = jnp.zeros(most, jnp.int32), jnp.zeros(most, jnp.float32), jnp.int32(0), jnp.zeros(n, bool)
    return lax.fori_loop(0, -(-most // picks), one, start)[0]
