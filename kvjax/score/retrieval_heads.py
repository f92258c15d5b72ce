"""Attention of a few query heads, found offline, decides for every KV head of the layer (CompressKV)."""

import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float, Float32, Int32, Integer

from kvjax.evidence import Evidence, Need, WindowQueries
from kvjax.kernels.window_scores import window_scores
from kvjax.protocols import Decoder
from kvjax.ranges import Whole
from kvjax.score.heads import by_position
from kvjax.score.pool import AvgPool
from kvjax.stage import Scorer
from kvjax.types import Function, Keys, Layer, Mask, Positions, Scores, Table, table
from kvjax.view import LayerView


def head_scores(mass: Float32[Array, "b r n"], before: Bool[Array, "b r n"], pool: Function) -> Float32[Array, "b r n"]:
    """p^h = pool(mass) over the columns before the window, zeros outside them; the window's columns keep their mass."""
    return jnp.where(before, pool(jnp.where(before, mass, 0.0)), mass)


def mass_of_heads(
    q: Float[Array, "b h g w d"], k: Keys, heads: Integer[Array, " r"], *, pos: Positions, valid: Mask, length: Int32[Array, " b"],
    window: Int32[Array, " b"] | None = None,
) -> Float32[Array, "b r n"]:  # fmt: skip
    """Σ_w a: what the window's queries of the query heads `heads` attend to, each over the keys of its own KV head heads // g."""
    b, h, g, w, d = q.shape
    owner = heads // g
    q = q.reshape(b, h * g, w, d)[:, heads][:, :, None]
    return window_scores(q, k[:, owner], pos=pos[:, owner], valid=valid[:, owner], length=length, window=window)[:, :, 0]


@struct.dataclass
class RetrievalHeads(Scorer):
    """P_l[j] = mean_{h in R_l} pool(Σ_{i in window} a_ij^h)[j], the same for every KV head of the layer.

    The softmax runs over all keys, the window's own included; pooling runs over the keys before the window, zeros at the cut.

    Args:
        heads: int32 [L, k_h], the query heads R_l of each layer; they need no order.
        window: observation window, in queries.
        pool: smoothing along the tokens (AvgPool, MaxPool, NoPool).
        origin: which model and calibration `heads` came from; two scorers with one origin are equal.

    Raises (from `check`): ValueError for heads that are not those of the model, or named twice in a layer.
    Source: CompressKV, arXiv 2508.02401, section 3.2. Where another stage gives KV heads different slots, a position counts with
    the heads whose own KV head holds it.
    """

    heads: Table = table()
    window: Whole = struct.field(pytree_node=False, default=8)
    pool: Function = AvgPool(5)
    origin: str = struct.field(pytree_node=False, default="")

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({WindowQueries(self.window)})

    def at(self, layer: Layer) -> "RetrievalHeads":
        return self.replace(heads=jnp.asarray(self.heads)[layer])

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        heads, there = np.asarray(self.heads), model.heads * model.groups
        if heads.ndim != 2 or heads.shape[0] != model.layers or not heads.shape[1] or heads.dtype.kind not in "iu":
            raise ValueError(
                f"RetrievalHeads wants integers [{model.layers} layers, heads]; got {heads.dtype} {heads.shape}: "
                "use the artefact of this model, or calibrate it"
            )
        if heads.min() < 0 or heads.max() >= there:
            raise ValueError(f"a layer has query heads 0 to {there - 1}; RetrievalHeads names {heads.min()} to {heads.max()}")
        if any(len(set(row)) < len(row) for row in heads.tolist()):
            raise ValueError("RetrievalHeads: a layer names a query head twice; name each head once")

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        q = evidence.window_queries(self.window)
        heads, where = jnp.asarray(self.heads), dict(pos=view.pos, valid=view.valid)
        owner = heads // q.shape[2]
        mass = mass_of_heads(q, view.k, heads, length=evidence.length, window=evidence.window, **where)
        before = view.valid & (view.pos < (evidence.length - self.window)[:, None, None])
        p = head_scores(mass, before[:, owner], self.pool)
        slots = jnp.where(view.valid, view.pos, -1)
        return lax.cond(
            (slots == slots[:, :1]).all(),
            lambda: jnp.broadcast_to(p.mean(1)[:, None], slots.shape),
            lambda: by_position(p, owner, **where).mean(1),
        )
