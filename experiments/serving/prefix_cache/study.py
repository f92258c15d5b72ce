"""Rules beside each other on one trace and machine, for caches of different sizes a token."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from experiments.bench.model_shapes import one_layer, serving
from experiments.bench.plan import GIB, cache_bytes
from experiments.bench.planned_cache import planned
from experiments.policies import Named
from experiments.prefill_equivalents import Hardware
from experiments.serving.prefix_cache.machine import Costs, Machine, Tier
from experiments.serving.prefix_cache.outcome import Outcome
from experiments.serving.prefix_cache.rules import LFU, LRU, Oracle, Rule
from experiments.serving.prefix_cache.simulator import simulate
from experiments.serving.prefix_cache.steps_to_execution import KVFlow, StepsToExecution
from experiments.serving.prefix_cache.time_to_live import Continuum, TimeToLive
from experiments.serving.prefix_cache.trace import Trace
from kvjax.budget import EVERYTHING
from kvjax.catalogue import when
from models.decoder import Decoder

#: Prompt tokens over which the bytes of a cached token are averaged.
_LONG = 1 << 15


@dataclass(frozen=True)
class Memories:
    """GiB of each tier for cached tokens, and bytes/s from the disk; a tier of 0 GiB is not there."""

    device: float
    host: float = 0.0
    disk: float = 0.0
    disk_bandwidth: float = 5e9


def rules(*, seconds: float, ahead: int) -> Mapping[str, Callable[[], Rule]]:
    """Rules by their names on the command line.

    Args:
        seconds: that "ttl" pins for.   ahead: steps that "kvflow" fetches ahead.
    """
    return {
        "lru": LRU,
        "lfu": LFU,
        "ttl": lambda: TimeToLive(seconds),
        "steps": StepsToExecution,
        "kvflow": lambda: KVFlow(ahead=ahead),
        "continuum": Continuum,
        "oracle": Oracle,
    }


def bytes_per_token(decoder: Decoder, policy: Named, dtype: str = "bfloat16") -> float:
    """Device bytes that a policy's cache takes for each token of a long prompt, all layers and heads together.

    Raises:
        ValueError: a policy that evicts, or ranks tokens for their bits: what it does depends on the whole prompt.
    """
    if when(policy.policy) != "nothing is evicted":
        keeps_all = policy.policy.budget == EVERYTHING and not policy.policy.allocate.given
        does = "ranks all tokens of a prompt for where and how they are kept" if keeps_all else "evicts"
        raise ValueError(
            f"{policy.name} {does}: its cache is no prefix of another prompt's; take one that keeps every token alike, such as kivi"
        )
    found = planned(serving(decoder, _LONG + 1), policy.policy, _LONG, new=0, dtype=jnp.dtype(dtype))
    return sum(cache_bytes(found)[0].values()) / _LONG


def parameters(decoder: Decoder) -> int:
    """Weights of the model; one layer is traced, the others are like it."""
    found = jax.eval_shape(lambda: one_layer(decoder).init(jax.random.key(0), jnp.bfloat16))

    def count(tree):
        return sum(x.size for x in jax.tree.leaves(tree))

    return count(found) + (decoder.layers - 1) * count(found["layers"])


def machine(decoder: Decoder, cached: float, hardware: Hardware, memories: Memories, running: int) -> Machine:
    """A card that serves the model with `cached` bytes a token."""
    sizes = [(memories.device, float("inf")), (memories.host, hardware.host_bandwidth), (memories.disk, memories.disk_bandwidth)]
    tiers = tuple(Tier(int(gib * GIB / cached), bandwidth) for gib, bandwidth in sizes if gib > 0)
    whole = 2 * 2 * decoder.layers * decoder.heads * decoder.head_dim
    return Machine(tiers, Costs.roofline(parameters(decoder), cached, whole, hardware), running)


def study(
    trace: Trace, makers: Mapping[str, Callable[[], Rule]], caches: Sequence[Named], decoder: Decoder, hardware: Hardware,
    memories: Memories, *, running: int,
) -> list[tuple[str, float, str, Outcome]]:  # fmt: skip
    """(cache, bytes a token, rule, outcome) of every cache and rule."""
    found = []
    for cache in caches:
        cached = bytes_per_token(decoder, cache)
        where = machine(decoder, cached, hardware, memories, running)
        found += [(cache.name, cached, name, simulate(trace, make(), where)) for name, make in makers.items()]
    return found
