"""Layer budgets by how evenly a layer's attention is spread over the prompt (D2O)."""

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Float, Float32, Int32

from kvjax.allocate.exact import exact_alloc
from kvjax.allocate.uniform import held
from kvjax.budget import whole_share
from kvjax.evidence import ColumnSums, Evidence, Need
from kvjax.order import places
from kvjax.ranges import Count, NonNegative, Share
from kvjax.stage import Allocator
from kvjax.types import Function, Mask
from kvjax.view import LayerView, Ranking


def column_variance(c: Float32[Array, "b h g n"], valid: Mask) -> Float32[Array, "b h g"]:
    """Unbiased variance over the valid positions of attention column sums; 0 for a single position."""
    n = valid.sum(-1).astype(jnp.float32)[..., None]
    real = valid[:, :, None]
    mean = jnp.where(real, c, 0.0).sum(-1) / jnp.maximum(n, 1)
    return jnp.where(real, (c - mean[..., None]) ** 2, 0.0).sum(-1) / jnp.maximum(n - 1, 1)


def minmax(x: Float[Array, "..."], axis: int) -> Float[Array, "..."]:
    """(x - min) / (max - min + 1e-6)."""
    low, high = x.min(axis, keepdims=True), x.max(axis, keepdims=True)
    return (x - low) / (high - low + 1e-6)


@struct.dataclass
class LayersMinMax:
    """F_l: the variances' mean over the query heads, min-max normalised over the layers.

    Keeps what the paper measures, a layer's variance against the other layers', in a range where exp(-F) cannot saturate.
    """

    def __call__(self, variance: Float[Array, "l b a"]) -> Float[Array, "l b"]:
        return minmax(variance.mean(-1), 0)


@struct.dataclass
class HeadsMinMax:
    """F_l: the variances min-max normalised over each layer's query heads, then their mean: the release of D2O.

    A layer's level is lost, only the shape over its heads is left; for comparisons with released numbers.
    """

    def __call__(self, variance: Float[Array, "l b a"]) -> Float[Array, "l b"]:
        return minmax(variance, -1).mean(-1)


@struct.dataclass
class Raw:
    """F_l: the variances' mean over the query heads, the paper's letter.

    It grows with the prompt, where exp(-F) gives one layer everything it can hold.
    """

    def __call__(self, variance: Float[Array, "l b a"]) -> Float[Array, "l b"]:
        return variance.mean(-1)


@struct.dataclass
class OverMean:
    """F_l: the variances' mean over the query heads, divided by its mean over the layers.

    Free of the prompt's scale, as `LayersMinMax`, and above zero, so that every rule of shares can read it.
    """

    def __call__(self, variance: Float[Array, "l b a"]) -> Float[Array, "l b"]:
        f = variance.mean(-1)
        return f / jnp.maximum(f.mean(0), 1e-12)


@struct.dataclass
class InverseVarianceSoftmax:
    """w_l = exp(-F_l). Source: D2O, arXiv 2406.13035, equation 5."""

    def __call__(self, f: Float[Array, "l b"]) -> Float[Array, "l b"]:
        return jnp.exp(f.min(0) - f)


@struct.dataclass
class Reciprocal:
    """w_l = 1 / F_l, F floored at 1e-6.

    Meant for OverMean() or Raw(), of which it makes the same: LayersMinMax() makes the smallest F zero, and its layer takes all it
    can hold.
    """

    def __call__(self, f: Float[Array, "l b"]) -> Float[Array, "l b"]:
        return 1 / jnp.maximum(f, 1e-6)


@struct.dataclass
class ExponentialDecay:
    """w_l = exp(-rate · rank of F_l, ascending from 0), ties to the lower layer. The paper names but does not give its formula."""

    rate: NonNegative = 0.1

    def __call__(self, f: Float[Array, "l b"]) -> Float[Array, "l b"]:
        rank = places(jnp.argsort(f, 0, stable=True), 0)
        return jnp.exp(-self.rate * rank.astype(f.dtype))


@struct.dataclass
class AttentionVariance(Allocator):
    """S_l ∝ shares(density(Var_j c_l[j])) between max(sinks + 2, floor(floor_share · n)) and n, summing to layers · mean_budget.

    c_l[j] is the attention mass key j received from one query head over the prompt. Evenly spread mass (low variance) leaves no
    token clearly disposable, so the layer gets more. Every KV head of a layer gets the layer's share.

    Args:
        shares: InverseVarianceSoftmax() (D2O), Reciprocal(), ExponentialDecay(rate).
        density: variances per query head → F_l: LayersMinMax(), OverMean(), HeadsMinMax() (the release), Raw() (the letter).
        sinks: sinks the selector keeps; a layer gets at least two slots more.
        floor_share: least share of the prompt a layer gets.

    Where the mean is below the least a layer should get, every layer gets the mean: the total is never exceeded.
    Source: D2O, arXiv 2406.13035, equations 4-5. Differs: exact integers, where the release clamps and loses the difference; one
    prompt at a time, where it averages the variance over a batch.
    """

    shares: Function = InverseVarianceSoftmax()
    density: Function = LayersMinMax()
    sinks: Count = 4
    floor_share: Share = 0.01

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({ColumnSums()})

    def measure(self, view: LayerView, evidence: Evidence) -> Float32[Array, "b h g"]:
        return column_variance(evidence.column_sums_by_head(), view.valid)

    def __call__(self, ranking: Ranking, mean_budget: Int32[Array, " b"]) -> Int32[Array, "l b h"]:
        n, layers = held(ranking), ranking.valid.shape[0]
        hi = n.max(-1).T
        low = whole_share(hi, self.floor_share)
        lo = jnp.minimum(jnp.maximum(low, self.sinks + 2), jnp.minimum(mean_budget[:, None], hi))
        with jax.enable_x64(True):
            f = lax.convert_element_type(ranking.measured, jnp.float64).reshape(*n.shape[:2], -1)
            w = self.shares(self.density(f)).T
        budget = exact_alloc(w, mean_budget * layers, lo, hi)
        return jnp.minimum(budget.T[..., None], n)


@struct.dataclass
class HeadVariance(AttentionVariance):
    """The rule of `AttentionVariance` over all KV heads of all layers instead of over layers.

        S_lh ∝ shares(density(Var_j c_lh[j])), summing to layers · heads · mean_budget

    c_lh are the column sums of the head's own query heads; the least a head gets is a layer's.

    Example:
        policy = kvjax.methods.d2o(budget=0.2).replace(allocate=HeadVariance())

    Source: D2O, arXiv 2406.13035, appendix A.9, which carries the layers' rule over to heads. Differs: exact integers.
    """

    def __call__(self, ranking: Ranking, mean_budget: Int32[Array, " b"]) -> Int32[Array, "l b h"]:
        n = held(ranking)
        layers, rows, heads = n.shape
        hi = n.transpose(1, 0, 2).reshape(rows, layers * heads)
        low = whole_share(hi, self.floor_share)
        lo = jnp.minimum(jnp.maximum(low, self.sinks + 2), jnp.minimum(mean_budget[:, None], hi))
        with jax.enable_x64(True):
            f = lax.convert_element_type(ranking.measured, jnp.float64).transpose(0, 2, 1, 3)
            w = self.shares(self.density(f.reshape(layers * heads, rows, -1))).T
        budget = exact_alloc(w, mean_budget * layers * heads, lo, hi)
        return budget.reshape(rows, layers, heads).transpose(1, 0, 2)
