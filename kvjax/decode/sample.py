"""Samplers: logits → the next token of each row, with an explicit key."""

import math

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int32

from kvjax.budget import number_of
from kvjax.types import Logits, Number


@struct.dataclass
class Greedy:
    """The most likely token; equal logits: the lower id."""

    random = False

    def __call__(self, logits: Logits, key: Array) -> Int32[Array, " b"]:
        del key
        return jnp.argmax(logits, -1).astype(jnp.int32)


@struct.dataclass
class Sample:
    """softmax(logits / temperature) over the `top_k` likeliest tokens, and of these over the nucleus of mass `top_p`.

    As in transformers the nucleus is of the `top_k`'s own distribution: p = softmax over the `top_k`, in order; token i is in
    while p_0 + ... + p_{i-1} < top_p.

    One key draws for the whole batch: what a row gets depends on the rows beside it, as it does not with `Greedy`. Of keys [b] each
    draws for its row, which gets what it gets alone with its key.

    Args:
        temperature: above 0 (1 leaves the distribution as it is).
        top_k: tokens considered, 0 for all.
        top_p: mass of the nucleus as a share of the `top_k`'s mass, in (0, 1]; the likeliest token is always in.
    """

    temperature: Number = 1.0
    top_k: Number = 0
    top_p: Number = 1.0
    random = True

    def __post_init__(self):
        temperature, top_k, top_p = (number_of(x) for x in (self.temperature, self.top_k, self.top_p))
        if isinstance(temperature, int | float) and not 0 < temperature < math.inf:
            raise ValueError(f"temperature must be finite and above 0; got {temperature} (Greedy() takes the likeliest token)")
        if isinstance(top_p, int | float) and not 0 < top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1]; got {self.top_p}")
        if isinstance(top_k, float) or (isinstance(top_k, int) and top_k < 0):
            raise ValueError(f"top_k must be 0 (all tokens) or more; got {self.top_k}")
        for name, number in (("temperature", temperature), ("top_p", top_p)):
            if isinstance(number, int):  # 1 runs the program of 1.0
                object.__setattr__(self, name, float(number))

    def __call__(self, logits: Logits, key: Array) -> Int32[Array, " b"]:
        z = -jnp.sort(-logits / self.temperature, -1)
        order = jnp.argsort(-logits, -1, stable=True)
        rank = jnp.arange(z.shape[-1])
        z = jnp.where(rank < jnp.where(self.top_k > 0, self.top_k, z.shape[-1]), z, -jnp.inf)
        p = jax.nn.softmax(z, -1)
        nucleus = jnp.cumsum(p, -1) - p < self.top_p
        z = jnp.where(nucleus, z, -jnp.inf)
        pick = jax.vmap(jax.random.categorical)(key, z) if key.ndim else jax.random.categorical(key, z)
        return jnp.take_along_axis(order, pick[:, None], -1)[:, 0].astype(jnp.int32)
