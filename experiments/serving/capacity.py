"""Serving capacity: how many requests of one length a card holds at a time under a policy, from the memory plan of one.

    weights + tables + one dense prompt + cache(n) + n steps <= card

cache(n) is what `kvjax.stack` of n requests allocates: slots of one pool, in a size class, and what each request has beside them.
Where a prompt decides how heads share the slots, regions of equal size are counted.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from experiments.bench.plan import GIB, plan
from experiments.bench.planned_cache import kept
from kvjax.cache.layout import plan_regions
from kvjax.policy import Policy
from kvjax.types import ALIGN, SLACK
from models.decoder import Decoder

#: Parts of a cache whose bytes go with the slots of its pool.
_POOLED = ("cache: keys", "cache: values", "cache: positions", "cache: state of stages")


@dataclass(frozen=True)
class Kind:
    """Bytes of one kind of memory: of a slot of the pool, and of a request beside its slots."""

    slot: float
    request: int

    @classmethod
    def of(cls, parts: dict[str, int], slots: int) -> "Kind":
        """From the parts of a plan of one request, whose pool has so many slots."""
        pooled = sum(parts.get(name, 0) for name in _POOLED)
        cached = sum(value for name, value in parts.items() if name.startswith("cache: "))
        return cls(pooled / slots, cached - pooled)


@dataclass(frozen=True)
class Capacity:
    """Bytes that decide how many requests fit.

    Attributes:
        fixed: weights and the policy's tables, held once.   prefill: the dense prompt that is read while the others decode.
        device, host: of the requests' caches.   step: a request's temporaries of a decode step.   card: all of the card's.
        regions: capacities of a request's regions [L, 1, H], a multiple of `align` each.
    """

    fixed: int
    prefill: int
    device: Kind
    host: Kind
    step: int
    card: int
    regions: Int[np.ndarray, "l 1 h"]
    align: int = ALIGN

    def cache(self, requests: int) -> int:
        """Bytes on the card of so many requests' caches, as one batch."""
        return self._of(self.device, requests)

    def host_cache(self, requests: int) -> int:
        """Bytes of theirs in host memory."""
        return self._of(self.host, requests)

    def needed(self, requests: int) -> int:
        """Bytes on the card while they decode and one more prompt is read."""
        return self.fixed + self.prefill + self.cache(requests) + requests * self.step

    @property
    def requests(self) -> int:
        """The most that fit; 0 where not even one does."""
        low, high = 0, 1
        while self._fits(high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._fits(middle) else (low, middle)
        return low

    def _fits(self, requests: int) -> bool:
        """Within the card, and within the indices of a pool."""
        indexed = requests * int(self.regions.sum(dtype=np.int64)) < 2**31 - SLACK
        return indexed and self.needed(requests) <= self.card

    def _of(self, kind: Kind, requests: int) -> int:
        slots = plan_regions(np.tile(self.regions, (1, requests, 1)), align=self.align)[2] if requests else 0
        return round(kind.slot * slots) + kind.request * requests


def capacity(decoder: Decoder, policy: Policy, *, length: int, new: int, dtype: str, card: float) -> Capacity:
    """What a card holds of requests of `length` prompt tokens and `new` generated.

    Args:
        decoder: from `model_shapes.decoder_of`.   policy: with tables of this model's shape.
        length, new: tokens.   dtype: of weights, activations and cache.   card: GiB.

    Raises:
        ValueError: as `plan`: a policy that fits neither the model nor the length, or one whose total depends on the prompt.
    """
    found = plan(decoder, policy, length=length, new=new, dtype=dtype, card=card)
    device, align = found["device"], math.lcm(ALIGN, policy.encode.page)
    return Capacity(
        fixed=device["weights"] + device["the policy's tables"],
        prefill=found["prefill"],
        device=Kind.of(device, found["slots"]),
        host=Kind.of(found["host"], found["slots"]),
        step=device["a decode step"],
        card=int(card * GIB),
        regions=plan_regions(kept(decoder, policy, length) + policy.when.headroom(new, 1), align=align)[1],
        align=align,
    )
