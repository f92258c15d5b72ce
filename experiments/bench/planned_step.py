"""A decode step that is not run: what XLA takes for every layer's append and attention, and the eviction after them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from experiments.bench.planned_cache import Planned
from kvjax.attention_inputs import AttentionInputs
from kvjax.decode.step import Spec, run_tokens
from kvjax.policy import Policy


@dataclass(frozen=True)
class Weightless:
    """A decoder whose layers' heads are given: what is left of a step is what the cache costs."""

    windows: tuple
    heads: int
    groups: int
    head_dim: int
    rope: Any = None
    retrofit: str = ""

    @property
    def layers(self) -> int:
        """As many as have a window or none."""
        return len(self.windows)

    def embed(self, params: Any, tokens: Any) -> Any:
        return params["x"]

    def layer(self, weights: Any, x: Any, positions: Any, attend: Callable) -> tuple[Any, Any]:
        out, aux = attend(AttentionInputs(**weights, x=x, residual=x, w_o=None, queries_of=lambda x: weights["q_raw"]))
        return x + out.sum().astype(x.dtype), aux


def step_temporaries(decoder: Any, policy: Policy, cache: Planned, dtype: Any) -> int:
    """Bytes of temporaries of one token's append, attention and eviction in all layers, as XLA compiles them for this machine."""
    g, d, h = decoder.groups, decoder.head_dim, decoder.heads
    cap = cache.padding(policy)
    policies, form = jax.tree.flatten(policy)

    def of(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype)

    heads = dict(q=of(1, h, g, 1, d), k=of(1, h, 1, d), v=of(1, h, 1, d), q_raw=of(1, h, g, 1, d))
    heads["k_raw"] = heads["k"]
    params = {"x": of(1, 1, decoder.config.width), "layers": [heads] * decoder.layers}

    def step(params, policies, leaves):
        policy = jax.tree.unflatten(form, policies)
        spec = Spec.of(Weightless(decoder.windows, h, g, d, decoder.rope), policy, cap)
        one = jnp.ones(1, jnp.int32)
        cache_, x = run_tokens(spec, params, jax.tree.unflatten(cache.structure, leaves), one[:, None], one)
        return jax.tree.leaves(cache_), x

    leaves = [_stored(x) if name == "pos" else x for name, x in cache.leaves]
    lowered = jax.jit(step, donate_argnums=2).lower(params, policies, leaves)
    return lowered.compile().memory_analysis().temp_size_in_bytes


def _stored(pos: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """Positions as one number a slot; temporaries are the same, and XLA writes out a constant of shape [s, 0] row by row."""
    return jax.ShapeDtypeStruct(pos.shape[:1], pos.dtype)
