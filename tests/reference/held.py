"""What one KV head holds, in order of position: append, attend, drop."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from .attention import attention_rows


def causal(q: Float[np.ndarray, "g c d"], k: Float[np.ndarray, "n d"], v: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "g c d"]:
    """Attention of the queries of the last c of n keys: each sees what comes before it and itself."""
    return attention_rows(q[None], k[None])[0] @ v.astype(np.float64)


@dataclass
class Held:
    """Rows in ascending order of their true positions; `seen` tokens went in, held or not."""

    k: Float[np.ndarray, "n d"]
    v: Float[np.ndarray, "n d"]
    pos: Int[np.ndarray, "n"]
    seen: int

    @classmethod
    def empty(cls, d: int) -> "Held":
        return cls(np.zeros((0, d)), np.zeros((0, d)), np.zeros(0, int), 0)

    def extend(
        self, q: Float[np.ndarray, "g c d"], k: Float[np.ndarray, "c d"], v: Float[np.ndarray, "c d"]
    ) -> Float[np.ndarray, "g c d"]:
        """Append c tokens, then attend: to everything held before and, causally, to the c themselves."""
        self.k, self.v = np.vstack([self.k, k.astype(np.float64)]), np.vstack([self.v, v.astype(np.float64)])
        self.pos = np.append(self.pos, np.arange(self.seen, self.seen + len(k)))
        self.seen += len(k)
        return causal(q, self.k, self.v)

    def keep(self, slots: np.ndarray) -> None:
        """Only these rows stay: ascending indices or a mask."""
        self.k, self.v, self.pos = self.k[slots], self.v[slots], self.pos[slots]
