"""What a policy decided for a prompt, before anything is packed."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float32, Int32, PyTree


@struct.dataclass
class Decision:
    """What was decided for one row, all layers.

    Attributes:
        scores: [l, 1, h, n].   state: each layer's state of the scorer that decoding goes on with.
        keep: which slots stay.   count: how many.   budget: what eviction while decoding cuts back to.
        mean_budget: mean slots per KV head that were asked for.
        stays: those that stay in any part, or elsewhere; None where `keep` has them all.
        away: which of the slots that stay the retriever holds elsewhere, not in the pool; None where it holds none.
    """

    scores: Float32[Array, "l b h n"]
    state: tuple[PyTree, ...]
    keep: Bool[Array, "l b h n"]
    count: Int32[Array, "l b h"]
    budget: Int32[Array, "l b h"]
    mean_budget: int = struct.field(pytree_node=False)
    stays: Bool[Array, "l b h n"] | None = None
    away: Bool[Array, "l b h n"] | None = None

    @property
    def in_all(self) -> Bool[Array, "l b h n"]:
        """The slots that stay, those of other parts and those held elsewhere included."""
        return self.keep if self.stays is None else self.stays

    @property
    def fitted_on(self) -> Bool[Array, "l b h n"]:
        """The slots that codecs are fitted on: those of `keep`, and where a head has none of its prompt there all that stay."""
        return jnp.where(self.keep.any(-1, keepdims=True), self.keep, self.in_all)

    @property
    def here(self) -> "Decision":
        """The part that enters the pool."""
        if self.away is None:
            return self
        keep = self.keep & ~self.away
        return self.replace(keep=keep, stays=self.in_all, count=keep.sum(-1, dtype=jnp.int32))
