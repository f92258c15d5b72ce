"""What a retriever keeps while decoding."""

import jax
import jax.numpy as jnp
from jaxtyping import PyTree


class RetrieverState:
    """What a retriever keeps in `cache.retrieval`: base of its pytree class."""

    @staticmethod
    def stack(states: list) -> PyTree:
        """One batch of several rows."""
        return jax.tree.map(lambda *x: jnp.concatenate(x), *states)

    @property
    def elsewhere(self) -> PyTree:
        """Tokens of the prompt that are held outside the pool, int32 [L, B, H], or 0 for none."""
        return 0

    @property
    def common(self) -> str:
        """What the rows of one batch have in common of the sizes and settings that it was made with, in words."""
        return ""

    @property
    def raw(self) -> PyTree:
        """What it holds in the model's dtype, whatever that is (`Encoder.raw`): keys, values and what is made of them."""
        return ()

    def split(self) -> tuple[PyTree, PyTree]:
        """The state without what decoding only reads, and that: it is shared, and no program is given it to overwrite."""
        return self, ()

    def joined(self, read: PyTree) -> PyTree:
        """The state with what `split` took out."""
        del read
        return self
