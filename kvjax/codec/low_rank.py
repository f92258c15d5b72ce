"""What a codec lost of a page, as a product of two thin matrices (GEAR)."""

import jax
import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Float16, Float32, Int32, PyTree

from kvjax.codec.codec import Codec
from kvjax.codec.wrapped import Wrapped
from kvjax.protocols import Decoder
from kvjax.types import Keys, Leaf


@struct.dataclass
class LowRankRows:
    """rest: rows of the codec.   left: [.., page, r] and right: [.., d, r] by page.   Or their shapes."""

    rest: PyTree
    left: Float16[Array, "..."] | Leaf
    right: Float16[Array, "..."] | Leaf


def factors(
    error: Float[Array, "*a m d"], start: Float[Array, "d r"], loops: int
) -> tuple[Float32[Array, "*a m r"], Float32[Array, "*a d r"]]:
    """(A, B) with A Bᵀ = Q Qᵀ E, the error's projection on r directions found by power iteration from P = `start`.

    `loops` times Q = E P, P = Eᵀ Q; in the last one P is made orthonormal before Q is formed, and Q before P is. A = Q, B = P.
    """
    error = error.astype(jnp.float32)
    p = jnp.broadcast_to(start.astype(jnp.float32), (*error.shape[:-2], *start.shape))

    def product(eq, *x):
        return jnp.einsum(eq, *x, precision="highest")

    for _ in range(loops - 1):
        p = product("...md,...mr->...dr", error, product("...md,...dr->...mr", error, p))
    q = jnp.linalg.qr(product("...md,...dr->...mr", error, jnp.linalg.qr(p)[0]))[0]
    return q, product("...md,...mr->...dr", error, q)


@struct.dataclass
class LowRank(Wrapped):
    """x ≈ c(x) + A Bᵀ, a page of `size` slots with its own A and B.

    Args:
        size: slots of a page; whole pages of the codec.
        rank: r, columns of A and B, at most the page and the head dimension.   loops: of the power iteration.
        seed: of the matrix it begins with, the same for every page.

    Takes 16 r (size + d) / (size d) bits a number beside the codec's.
    Source: GEAR, arXiv 2403.05527, section 3 and algorithm 2. Differs: a prompt's pages have factors of their own, as decoded ones
    do; the paper gives the prompt one B.
    Raises: ValueError for sizes that do not fit each other; for a rank above the head dimension, when compressing.
    """

    size: int = struct.field(pytree_node=False, default=64)
    rank: int = struct.field(pytree_node=False, default=2)
    loops: int = struct.field(pytree_node=False, default=3)
    seed: int = struct.field(pytree_node=False, default=0)

    def __post_init__(self):
        super().__post_init__()
        if not 1 <= self.rank <= self.size or self.loops < 1:
            raise ValueError(f"a page of {self.size} slots has rank 1 to {self.size} and 1 loop or more; got {self!r}")
        if isinstance(self.codec, Codec) and self.size % self.codec.page:
            raise ValueError(f"{self.size} slots are not whole pages of {self.codec.page}: choose a multiple of it")

    @property
    def page(self) -> int:
        return self.size

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        super().check(model, length, mean_budget)
        if self.rank > model.head_dim:
            raise ValueError(f"rank {self.rank} is above the model's head dimension {model.head_dim}: lower it")

    def rows(self, slots: int, d: int, dtype: DTypeLike) -> LowRankRows:
        pages, store = slots // self.size, jnp.float16
        left, right = jnp.zeros((pages, self.size, self.rank), store), jnp.zeros((pages, d, self.rank), store)
        return LowRankRows(self.codec.rows(slots, d, dtype), left, right)

    def encode(self, x: Keys, pos: Int32[Array, "b h n"] | None = None, params: PyTree = ()) -> LowRankRows:
        b, h, n, d = x.shape
        rest = self.codec.encode(x, pos, params)
        error = x.astype(jnp.float32) - self.codec.decode(rest, jnp.float32, params)
        start = jax.random.normal(jax.random.key(self.seed), (d, self.rank))
        left, right = factors(error.reshape(b, h, n // self.size, self.size, d), start, self.loops)
        return LowRankRows(rest, left.astype(jnp.float16), right.astype(jnp.float16))

    def decode(self, rows: LowRankRows, dtype: DTypeLike, params: PyTree = ()) -> Keys:
        x = self.codec.decode(rows.rest, jnp.float32, params)
        left, right = rows.left.astype(jnp.float32), rows.right.astype(jnp.float32)
        error = jnp.einsum("bhpmr,bhpdr->bhpmd", left, right, precision="highest")
        return (x + error.reshape(x.shape)).astype(dtype)
