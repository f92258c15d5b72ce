"""All KV heads of a token in one basis, their components coded together (KVTC)."""

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Float32, Int32, PyTree

from kvjax.codec.wrapped import Wrapped
from kvjax.protocols import Decoder
from kvjax.types import Keys, Layer, Table, later_table


def components(x: Keys, basis: Float[Array, "p r"], mean: Float[Array, " p"]) -> Float32[Array, "b n r"]:
    """y = Vᵀ(x - μ), x the d channels of all heads of a token, one behind the other: p = h·d."""
    b, h, n, d = x.shape
    token = jnp.swapaxes(x.astype(jnp.float32), 1, 2).reshape(b, n, h * d)
    return jnp.einsum("bnp,pr->bnr", token - mean, basis, precision="highest")


def reconstructed(y: Float[Array, "b n r"], basis: Float[Array, "p r"], mean: Float[Array, " p"], heads: int) -> Keys:
    """x^ = V y + μ, heads apart again, float32."""
    token = jnp.einsum("bnr,pr->bnp", y.astype(jnp.float32), basis, precision="highest") + mean
    return jnp.swapaxes(token.reshape(*token.shape[:2], heads, -1), 1, 2)


@struct.dataclass
class Transformed(Wrapped):
    """x ≈ V c(Vᵀ(x - μ)) + μ, over all KV heads of a token at once; every head's slot holds its share of the bytes.

    Args:
        codec: c, of single slots; it is handed the r components as the channels of one head.
        basis: V, [L, h·d, r] of orthonormal columns; of keys as they are stored: before the rotary embedding with
            `positions=Unrotated()`.
        mean: μ, [L, h·d].
        origin: what both were measured on; two codecs of one origin are equal.

    The i-th slots of a layer's heads are one code, so that all heads hold as many slots and none goes by itself. Its bytes are
    dealt out in their order, ceil(w / h) a head; what does not fill the last share is 0.
    Source: KVTC, arXiv 2511.01815, section 3: PCA of concatenated heads. Differs: a basis a layer, where the paper's spans layers.
    Raises: ValueError for tables of another model, for codecs of pages, when compressing.
    """

    across_heads: ClassVar[bool] = True
    together: ClassVar[bool] = True
    basis: Table = later_table()
    mean: Table = later_table()
    origin: str = struct.field(pytree_node=False, default="")

    def at(self, layer: Layer) -> "Transformed":
        return self.replace(codec=self.codec.at(layer), basis=self.basis[layer], mean=self.mean[layer])

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        (layers, p), wanted = np.shape(self.basis)[:2], (model.layers, model.heads * model.head_dim)
        if (layers, p) != wanted:
            raise ValueError(
                f"the basis is for {layers} layers of {p} channels, the model has {model.layers} of {model.heads} KV heads of "
                f"{model.head_dim}: calibrate it with `kvjax calibrate kvtc`"
            )
        if self.codec.page > 1 or self.codec.fitted:
            raise ValueError(f"components are coded slot by slot, by a codec that no prompt fits; got {self.codec!r}")

    def rows(self, slots: int, d: int, dtype: DTypeLike) -> PyTree:
        p = np.shape(self.mean)[-1]
        one = jax.eval_shape(lambda: self.codec.rows(1, np.shape(self.basis)[-1], dtype))
        return jax.tree.map(lambda x: jnp.zeros((slots, -(-math.prod(x.shape) * d // p)), x.dtype), one)

    def encode(self, x: Keys, pos: Int32[Array, "b h n"] | None = None, params: PyTree = ()) -> PyTree:
        del pos
        y = components(x, *self._numbers())
        return jax.tree.map(lambda row: _dealt(row, x.shape[1]), self.codec.encode(y[:, None], None, params))

    def decode(self, rows: PyTree, dtype: DTypeLike, params: PyTree = ()) -> Keys:
        basis, mean = self._numbers()
        heads, like = jax.tree.leaves(rows)[0].shape[1], jax.tree.leaves(rows)[0].dtype
        one = jax.eval_shape(lambda: self.codec.rows(1, basis.shape[-1], like))
        whole = jax.tree.map(_collected, rows, one)
        return reconstructed(self.codec.decode(whole, jnp.float32, params)[:, 0], basis, mean, heads).astype(dtype)

    def _numbers(self) -> tuple[Float32[Array, "p r"], Float32[Array, " p"]]:
        return jnp.asarray(self.basis, jnp.float32), jnp.asarray(self.mean, jnp.float32)


def _dealt(row: Array, heads: int) -> Array:
    """Rows [b, 1, n, ...] of all heads as shares [b, h, n, m] of each."""
    b, _, n = row.shape[:3]
    flat = row.reshape(b, n, -1)
    flat = jnp.pad(flat, ((0, 0), (0, 0), (0, -flat.shape[-1] % heads)))
    return jnp.swapaxes(flat.reshape(b, n, heads, -1), 1, 2)


def _collected(shares: Array, one: jax.ShapeDtypeStruct) -> Array:
    """Shares [b, h, n, m] as the rows [b, 1, n, ...] they are of; `one` is the shape of a single row."""
    b, _, n = shares.shape[:3]
    flat = jnp.swapaxes(shares, 1, 2).reshape(b, n, -1)[..., : math.prod(one.shape)]
    return flat.reshape(b, 1, n, *one.shape[1:])
