"""A decoder of one layer that replays recorded queries, keys and values by position; its logits are the attention output."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from kvjax.attention_inputs import AttentionInputs


@dataclass(frozen=True)
class Config:
    width: int


@dataclass(frozen=True)
class Replay:
    """What the library asks of a decoder; h KV heads with a query head each."""

    heads: int
    head_dim: int
    groups: int = 1
    layers: int = 1
    windows: tuple[int | None, ...] = (None,)
    max_positions: int = 1024
    rope: Any = None
    retrofit: str = ""

    @property
    def vocab(self) -> int:
        return self.heads * self.head_dim

    @property
    def config(self) -> Config:
        return Config(width=self.vocab)

    def embed(self, params, tokens):
        return jnp.zeros((*tokens.shape, self.vocab), jnp.float32)

    def layer(self, weights, x, positions, attend):
        at = jnp.clip(positions, 0, weights["q"].shape[1] - 1)
        q, k, v = (jnp.moveaxis(weights[name][:, at], 0, 1) for name in ("q", "k", "v"))
        inputs = AttentionInputs(q=q[:, :, None], k=k, v=v, q_raw=q[:, :, None], k_raw=k, x=x, residual=x, w_o=None)
        out, aux = attend(inputs)
        return jnp.moveaxis(out[:, :, 0], 1, 2).reshape(x.shape), aux

    def unembed(self, params, x):
        return x.astype(jnp.float32)


@dataclass(frozen=True)
class ReplayedModel:
    """A language model of it."""

    decoder: Replay
    params: Any
    tokenizer: None = None

    @classmethod
    def of(cls, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> "ReplayedModel":
        """From [h, n, d]."""
        weights = {name: jnp.asarray(x, jnp.float32) for name, x in (("q", q), ("k", k), ("v", v))}
        params = {"embed": {"weight": jnp.zeros((1, 1), jnp.float32)}, "layers": [weights]}
        return cls(Replay(heads=q.shape[0], head_dim=q.shape[2]), params)
