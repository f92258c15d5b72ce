"""Everything but the heavy slots mixed into a few by a learned convolution along the tokens (LoCoCo)."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Float32, Int32, PyTree

from kvjax.evidence.gate_values import origin_of
from kvjax.kernels.select_top import ordered, select_top
from kvjax.order import places
from kvjax.protocols import Decoder
from kvjax.stage import Merger
from kvjax.types import Keys, Layer, Mask, Number, Scores, Table, table
from kvjax.view import LayerView

#: The place of tokens that came since the last merge, behind all places in the list.
_NEW = 1 << 30


def init_convolution(key: Array, *, layers: int, slots: int, head_dim: int, width: int = 21) -> dict[str, Array]:
    """Untrained weights: kernels N(0, 1), biases 0, gamma 1/2; M_c (2 d width + 1) + 1 numbers a layer."""
    return {
        "kernel": jax.random.normal(key, (layers, slots, 2 * head_dim, width), jnp.float32),
        "bias": jnp.zeros((layers, slots), jnp.float32),
        "gamma": jnp.full((layers,), 0.5, jnp.float32),
    }


def convolution(
    x: Float[Array, "n c"], kernel: Float[Array, "m c w"], bias: Float[Array, " m"]
) -> Float32[Array, "m n"]:  # fmt: skip
    """y[r, i] = relu(bias_r + Σ_c Σ_j kernel[r, c, j] x[i + j - (w - 1) / 2, c]), zeros outside.

    One product with all taps of the kernel, then their sum: XLA's convolution is a plain loop on a CPU.
    """
    (m, c, w), n = kernel.shape, x.shape[0]
    taps = kernel.astype(jnp.float32).transpose(1, 2, 0).reshape(c, w * m)
    z = jnp.matmul(x.astype(jnp.float32), taps, precision="highest").reshape(n, w, m)
    z = jnp.pad(z, ((w // 2, w // 2), (0, 0), (0, 0)))
    y = sum(z[j : j + n, j] for j in range(w))
    return jnp.maximum(y.T + bias[:, None], 0.0)


def mixed(
    x: Float32[Array, "n c"], rest: Int32[Array, ""], rows: Int32[Array, " m"], weights: dict[str, Array]
) -> Float32[Array, "m c"]:  # fmt: skip
    """W x, W = (1 - γ) O + γ softmax(conv(x)): O picks `rows`; the softmax runs over the first `rest` entries of the list x."""
    real = jnp.arange(x.shape[0]) < rest
    x = jnp.where(real[:, None], x, 0.0)
    y = convolution(x, weights["kernel"], weights["bias"])
    w = jax.nn.softmax(jnp.where(real, y, -jnp.inf), axis=-1)
    gamma = weights["gamma"]
    return (1 - gamma) * x[rows] + gamma * jnp.matmul(w, x, precision="highest")


def listed(place: Int32[Array, "b h n"], heavy: Mask, keep: Mask) -> Int32[Array, "b h n"]:
    """Places 1, 2, ... in the new list: heavy slots in the order they had, then mixed ones."""
    return places(jnp.lexsort((place, ~heavy, ~keep), axis=-1)) + 1


@struct.dataclass
class Convolved(Merger):
    """Of the slots that stay the m best by score, and the last tokens, are heavy and stay as they are; the other M_c are mixtures.

    Row r mixes everything that is not heavy, kept or not, into the r-th kept slot of it: see `mixed`. It convolves over the
    release's list: heavy slots of the last merge, mixed ones, then what came since. A slot's state is its place there, 0 if new.

    Args:
        weights: kernel [L, M_c, 2 d, w], bias [L, M_c], gamma [L].   recent: last tokens that are heavy.
        origin: of the weights; two mergers with one origin are equal.

    A head that keeps fewer than M_c slots uses as many rows; one that evicts nothing stays as it is. Source: LoCoCo, arXiv
    2406.05317. Differs: one convolution for KV heads (the release mixes scores of query heads with keys of KV heads).
    """

    weights: Table = table()
    recent: Number = 0
    origin: str = struct.field(pytree_node=False, default="")

    @classmethod
    def of(cls, weights: PyTree, *, recent: int = 0, origin: str = "") -> "Convolved":
        """With an origin made from the weights where none is given."""
        return cls(weights=weights, recent=recent, origin=origin or origin_of(weights))

    def at(self, layer: Layer) -> "Convolved":
        return self.replace(weights=jax.tree.map(lambda x: jnp.asarray(x)[layer], self.weights))

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        found = {name: np.shape(x) for name, x in self.weights.items()}
        kernel = found.get("kernel", ())
        slots = kernel[1] if len(kernel) == 4 else "M_c"
        layers, channels = model.layers, 2 * model.head_dim
        wanted = {"kernel": (layers, slots, channels, *kernel[3:]), "bias": (layers, slots), "gamma": (layers,)}
        if found != wanted or kernel[3] % 2 == 0:
            raise ValueError(
                f"Convolved wants kernel [{layers}, M_c, {channels}, odd width], bias [{layers}, M_c] and gamma [{layers}]; "
                f"got {found}: use this model's weights, or init_convolution"
            )

    def init(self, shape: tuple[int, int, int]) -> Int32[Array, "b h n"]:
        return jnp.zeros(shape, jnp.int32)

    def __call__(self, view: LayerView, keep: Mask, scores: Scores, memory: PyTree) -> tuple[LayerView, PyTree]:
        slots, evicts = self.weights["kernel"].shape[0], (view.valid & ~keep).any(-1)[..., None]
        heavy = self._heavy(view, keep, scores, slots)
        place = jnp.where(view.state > 0, view.state, _NEW)
        order = jnp.argsort(jnp.where(view.valid, place, _NEW + 1), axis=-1, stable=True).astype(jnp.int32)
        rest = jnp.take_along_axis(view.valid & ~heavy, order, -1)
        order = jnp.take_along_axis(order, jnp.argsort(~rest, axis=-1, stable=True), -1)
        mixing = jnp.take_along_axis(keep & ~heavy, order, -1)
        rows = jnp.argsort(~mixing, axis=-1, stable=True)[..., :slots].astype(jnp.int32)
        k, v = self._mixtures(view, order, rows, rest.sum(-1))
        real = (jnp.arange(rows.shape[-1]) < mixing.sum(-1)[..., None]) & evicts
        at = jnp.where(real, jnp.take_along_axis(order, rows, -1), keep.shape[-1])
        b, h = (i[..., None] for i in jnp.indices(keep.shape[:2]))

        def put(x, new):
            return x.at[b, h, at].set(new.astype(x.dtype), mode="drop")

        state = jnp.where(evicts & keep, listed(place, heavy, keep), view.state)
        return view.replace(k=put(view.k, k), v=put(view.v, v), state=state), memory

    def _heavy(self, view: LayerView, keep: Mask, scores: Scores, slots: int) -> Mask:
        """All kept slots but M_c: the last tokens, then the best."""
        last = view.pos >= (view.length - self.recent)[:, None, None]
        order = jnp.where(last, jnp.uint32(0xFFFFFFFF), ordered(scores.astype(jnp.float32)))
        return select_top(jnp.where(keep, order, jnp.uint32(0)), jnp.maximum(keep.sum(-1).astype(jnp.int32) - slots, 0))

    def _mixtures(self, view: LayerView, order: Array, rows: Array, rest: Array) -> tuple[Keys, Keys]:
        x = jnp.concatenate([view.k.astype(jnp.float32), view.v.astype(jnp.float32)], -1)
        x = jnp.take_along_axis(x, order[..., None], 2)
        of_rows = jax.vmap(jax.vmap(mixed, (0, 0, 0, None)), (0, 0, 0, None))
        return tuple(jnp.split(of_rows(x, rest.astype(jnp.int32), rows, self.weights), 2, axis=-1))
