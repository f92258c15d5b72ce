"""What a retriever keeps while decoding."""

from typing import Any

import jax
import jax.numpy as jnp


class RetrieverState:
    """What a retriever keeps in `cache.retrieval`: base of its pytree class."""

    @staticmethod
    def stack(states: list) -> Any:
        """One batch of several rows."""
        return jax.tree.map(lambda *x: jnp.concatenate(x), *states)

    @property
    def elsewhere(self) -> Any:
        """Tokens of the prompt that are held outside the pool, int32 [L, B, H], or 0 for none."""
        return 0

    def split(self) -> tuple[Any, Any]:
        """The state without what decoding only reads, and that: it is shared, and no program is given it to overwrite."""
        return self, ()

    def joined(self, read: Any) -> Any:
        """The state with what `split` took out."""
        del read
        return self
