"""Tokens that are attended to and that no later token repeats (R-KV)."""

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float, Float32, Int32

from kvjax.evidence import Evidence, Need, WindowQueries
from kvjax.kernels.window_scores import sees
from kvjax.ranges import Share, Size
from kvjax.score.geometry import unit
from kvjax.score.pool import MaxPool
from kvjax.stage import Scorer
from kvjax.types import Function, Keys, Mask, Number, Scores
from kvjax.view import LayerView

#: Rows of the similarity matrix alive at once.
_ROWS = 128


@struct.dataclass
class LastDuplicate:
    """The later of two near duplicates is forgiven: the last column above the threshold, none in a row without one."""

    def __call__(self, near: Bool[Array, "... n"]) -> tuple[Int32[Array, "..."], Bool[Array, "..."]]:
        last = near.shape[-1] - 1 - jnp.argmax(near[..., ::-1], -1)
        return last.astype(jnp.int32), near.any(-1)


@struct.dataclass
class LastOrFirst(LastDuplicate):
    """As the release has it: in a row without a near duplicate column 0 is forgiven."""

    def __call__(self, near: Bool[Array, "... n"]) -> tuple[Int32[Array, "..."], Bool[Array, "..."]]:
        last, found = LastDuplicate()(near)
        return jnp.where(found, last, 0), jnp.ones_like(found)


@struct.dataclass
class FirstColumn(LastDuplicate):
    """The release's other direction, which forgives column 0 in every row."""

    def __call__(self, near: Bool[Array, "... n"]) -> tuple[Int32[Array, "..."], Bool[Array, "..."]]:
        return jnp.zeros(near.shape[:-1], jnp.int32), jnp.ones(near.shape[:-1], bool)


def column_similarity(k: Keys, valid: Mask, *, tau: Number, forgive: Function) -> Scores:
    """Mean over rows i of cos(k_i, k_j), the diagonal 0, and in every row the entry that `forgive` names of those above tau 0."""
    b, h, n, _ = k.shape
    x, count = jnp.where(valid[..., None], unit(k), 0.0), jnp.maximum(valid.sum(-1, keepdims=True), 1)
    rows, at = min(_ROWS, n), jnp.arange(n, dtype=jnp.int32)
    tiles = -(-n // rows)

    def tile(i, total):
        index = jnp.minimum(i * rows + jnp.arange(rows, dtype=jnp.int32), n - 1)
        real = (i * rows + jnp.arange(rows) < n) & jnp.take(valid, index, axis=2)
        cos = jnp.einsum("bhrd,bhnd->bhrn", jnp.take(x, index, axis=2), x, precision="highest")
        cos = jnp.where(at == index[:, None], 0.0, cos)
        column, found = forgive((cos > tau) & valid[:, :, None])
        cos = jnp.where(found[..., None] & (at == column[..., None]), 0.0, cos)
        return total + jnp.where(real[..., None], cos, 0.0).sum(2)

    return lax.fori_loop(0, tiles, tile, jnp.zeros((b, h, n), jnp.float32)) / count


def redundancy(k: Keys, valid: Mask, *, tau: Number, forgive: Function) -> Scores:
    """u_r = softmax over all tokens of their column's mean similarity."""
    means = column_similarity(k, valid, tau=tau, forgive=forgive)
    return jax.nn.softmax(jnp.where(valid, means, jnp.finfo(jnp.float32).min), -1)


def older_attention(
    q: Float[Array, "b h g w d"], k: Keys, older: Mask, *, pool: Function, seen: Bool[Array, "b h w n"] | None = None
) -> Scores:
    """u_a = pool(mean_w softmax(max_g q k / sqrt(d))) over the tokens before the window, which alone take part; -inf elsewhere.

    `seen`: those of them that each query sees, None for all.
    """
    z = jnp.einsum("bhgwd,bhnd->bhgwn", q, k, preferred_element_type=jnp.float32).max(2) / jnp.sqrt(jnp.float32(k.shape[-1]))
    among = older[:, :, None] if seen is None else older[:, :, None] & seen
    p = jax.nn.softmax(jnp.where(among, z, jnp.finfo(jnp.float32).min), -1)
    p = p.mean(2) if seen is None else jnp.where(among, p, 0.0).mean(2)  # a query may see none of them
    return pool(jnp.where(older, p, -jnp.inf))


def mixed(u_a: Float32[Array, "*b n"], u_r: Float32[Array, "*b n"], weight: Number) -> Float32[Array, "*b n"]:
    """u = λ u_a - (1 - λ) u_r."""
    return weight * u_a - (1 - weight) * u_r


@struct.dataclass
class Redundancy(Scorer):
    """u = λ u_a - (1 - λ) u_r for the tokens before the last `window`: see `older_attention` and `redundancy`.

    Args:
        window: last queries whose attention counts; their tokens have no score and must be protected.
        weight: λ.   tau: cosine above which a key is a near duplicate.
        pool: smoothing of the attention.   forgive: LastDuplicate(), or as the release has it LastOrFirst() or FirstColumn().

    Source: R-KV, arXiv 2505.24133, section 3. The window's tokens leave the attention before its softmax, and take part in that
    of the redundancy.
    """

    window: Size = struct.field(pytree_node=False, default=8)
    weight: Share = 0.1
    tau: Number = 0.5
    pool: Function = MaxPool(7)
    forgive: Function = LastDuplicate()

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({WindowQueries(self.window)})

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        older = view.valid & (view.pos < (view.length - self.window)[:, None, None])
        q, seen = evidence.window_queries(self.window), self._seen(view, evidence)
        u_a = older_attention(q, view.k, older, pool=self.pool, seen=seen)
        u_r = redundancy(view.k, view.valid, tau=self.tau, forgive=self.forgive)
        return jnp.where(older, mixed(jnp.where(older, u_a, 0.0), u_r, self.weight), 0.0)  # λ · -inf has no slope

    def _seen(self, view: LayerView, evidence: Evidence) -> Bool[Array, "b h w n"] | None:
        """What each query sees where layers have sliding windows."""
        if evidence.window is None:
            return None
        at = evidence.length[:, None] - self.window + jnp.arange(self.window, dtype=jnp.int32)
        return sees(view.pos, view.valid, at, evidence.window)[:, :, 0]
