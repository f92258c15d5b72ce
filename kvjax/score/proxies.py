"""Attention of a few proxy queries over the whole text, without a mask (NaCL)."""

import math

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Float32, Int32

from kvjax.budget import whole_share
from kvjax.evidence import Evidence, Need, WindowQueries
from kvjax.kernels.softmax import softmax
from kvjax.ranges import Share, Whole
from kvjax.stage import Scorer
from kvjax.types import Keys, Mask, Number, Scores
from kvjax.view import LayerView


def proxies(n: Int32[Array, " b"], *, share: Number, least: int, most: int) -> Int32[Array, " b"]:
    """p = floor(share · n), at least `least`, at most `most` and n."""
    wished = whole_share(n, share)
    return jnp.minimum(jnp.clip(wished, least, most), n)


def proxy_mass(q: Float[Array, "b h g w d"], k: Keys, valid: Mask, count: Int32[Array, " b"]) -> Float32[Array, "b h g n"]:
    """Σ softmax_n(q k / sqrt(d)) of the last `count` queries over all valid slots, later ones included."""
    w, d = q.shape[3:]
    z = jnp.einsum("bhgwd,bhnd->bhgwn", q, k, preferred_element_type=jnp.float32) / math.sqrt(d)
    p = softmax(jnp.where(valid[:, :, None, None], z, -jnp.inf))
    counts = jnp.arange(w, dtype=jnp.int32) >= w - count[:, None]
    return jnp.where(counts[:, None, None, :, None], p, 0.0).sum(3)


@struct.dataclass
class ProxyQueries(Scorer):
    """u = mean_g Σ softmax(q k / sqrt(d)) over the last p = max(floor(share · n), least) queries, each over all n keys.

    Args:
        share: proxies, as a share of the text.   least, most: fewest and most of them.

    Source: NaCL, arXiv 2408.03675, section 3.1; without a causal mask, as in the release.
    """

    share: Share = 0.01
    least: Whole = struct.field(pytree_node=False, default=5)
    most: Whole = struct.field(pytree_node=False, default=64)

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({WindowQueries(self.most)})

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        count = proxies(evidence.length, share=self.share, least=self.least, most=self.most)
        return proxy_mass(evidence.window_queries(self.most), view.k, view.valid, count).mean(2)
