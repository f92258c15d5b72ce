"""The server that is simulated: tiers of memory, and the seconds that prefilling, decoding and moving take."""

import math
from dataclasses import dataclass

from experiments.prefill_equivalents import Hardware, gamma


@dataclass(frozen=True)
class Tier:
    """A place for cached tokens: the device, the host's memory, a disk.

    Attributes:
        tokens: capacity.   bandwidth: bytes/s from here to the device; of the device itself it is not read.
    """

    tokens: int
    bandwidth: float = math.inf


@dataclass(frozen=True)
class Costs:
    """Seconds of a model on a card.

    Attributes:
        prefill: seconds a prefilled token.   decode: seconds a generated token, without its cache.
        read: seconds that a generated token takes for each token of its context.
        bytes_per_token: of the cache.   gamma: of PTE with the cache's own bytes.   gamma_16bit: with those of the whole cache.
    """

    prefill: float
    decode: float
    read: float
    bytes_per_token: float
    gamma: float
    gamma_16bit: float

    @classmethod
    def roofline(cls, parameters: float, bytes_per_token: float, full_bytes_per_token: float, hardware: Hardware) -> "Costs":
        """By the roofline: prefill is bound by arithmetic, decoding by memory.

            prefill = 2 N / flops      decode = 2 N / bandwidth      read = bytes a token / bandwidth

        Args:
            parameters: N; weights are 16-bit.   bytes_per_token: of the cache that is simulated.
            full_bytes_per_token: of the model's whole cache in 16 bits.
        """
        return cls(
            prefill=2 * parameters / hardware.flops,
            decode=2 * parameters / hardware.bandwidth,
            read=bytes_per_token / hardware.bandwidth,
            bytes_per_token=bytes_per_token,
            gamma=gamma(bytes_per_token, parameters, hardware),
            gamma_16bit=gamma(full_bytes_per_token, parameters, hardware),
        )

    def decoding(self, context: int, generated: int) -> float:
        """Seconds of `generated` tokens after `context`: the context grows as they come."""
        return generated * (self.decode + self.read * (context + generated / 2))


@dataclass(frozen=True)
class Machine:
    """Tiers, fastest first, and how many requests run at a time.

    Raises:
        ValueError: no tier, a tier without room or bandwidth, or nothing that may run.
    """

    tiers: tuple[Tier, ...]
    costs: Costs
    running: int = 8

    def __post_init__(self) -> None:
        if not self.tiers or self.running < 1 or any(tier.tokens < 0 or tier.bandwidth <= 0 for tier in self.tiers):
            raise ValueError(f"a machine has tiers with room and bandwidth, and runs a request at a time at least; got {self}")
