"""Serving capacity: how many requests of one length a card holds at a time under a policy, from the memory plan of one.

requests = floor((card - weights - tables - one dense prompt) / (cache + decode step))
"""

from dataclasses import dataclass

from experiments.bench.plan import GIB, plan
from kvjax.policy import Policy
from models.decoder import Decoder


@dataclass(frozen=True)
class Capacity:
    """Bytes that decide how many requests fit.

    Attributes:
        fixed: weights and the policy's tables, held once.   prefill: the dense prompt that is read while the others decode.
        cache, host: of a request, on the card and in host memory.   step: a request's temporaries of a decode step.
        card: all of the card's.
    """

    fixed: int
    prefill: int
    cache: int
    host: int
    step: int
    card: int

    @property
    def requests(self) -> int:
        """Requests that decode at a time; 0 where not even one fits."""
        return max(0, (self.card - self.fixed - self.prefill) // (self.cache + self.step))

    def live(self, requests: int) -> int:
        """Bytes of the buffers that stay alive between steps with so many requests under way and no prompt being read."""
        return self.fixed + requests * self.cache


def capacity(decoder: Decoder, policy: Policy, *, length: int, new: int, dtype: str, card: float) -> Capacity:
    """What a card holds of requests of `length` prompt tokens and `new` generated.

    Args:
        decoder: from `model_shapes.decoder_of`.   policy: with tables of this model's shape.
        length, new: tokens.   dtype: of weights, activations and cache.   card: GiB.

    Raises:
        ValueError: as `plan`: a policy that fits neither the model nor the length, or one whose total depends on the prompt.
    """
    found = plan(decoder, policy, length=length, new=new, dtype=dtype, card=card)
    device = found["device"]
    cache = sum(value for name, value in device.items() if name.startswith("cache: "))
    return Capacity(
        fixed=device["weights"] + device["the policy's tables"],
        prefill=found["prefill"],
        cache=cache,
        host=sum(found["host"].values()),
        step=device["a decode step"],
        card=int(card * GIB),
    )
