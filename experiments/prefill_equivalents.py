"""Prefill token equivalents: what the calls of a run cost a machine, counted in prefilled tokens.

    PTE = sum_i ( P_i + gamma S_i O_i )        gamma = (bytes a token of cache / 2) HOI / N

P_i tokens prefilled in call i, S_i tokens of context, O_i generated, N parameters, HOI peak FLOP/s over bytes/s of memory.
Source: "Beyond Accuracy: Unveiling Inefficiency Patterns in Tool-Integrated Reasoning" (arXiv 2604.05404, ACL 2026). Differs: the
paper's gamma = 2 L D HOI / N is the case of multi-head attention in 16 bits, 4 L D bytes a token (`multi_head`); here grouped
heads and compressed caches count as what they are.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Hardware:
    """A card by its data sheet.

    Attributes:
        flops: dense 16-bit FLOP/s.   bandwidth: bytes/s of device memory.   host_bandwidth: bytes/s from host to device.
    """

    flops: float
    bandwidth: float
    host_bandwidth: float

    @property
    def operational_intensity(self) -> float:
        """HOI: FLOPs a byte."""
        return self.flops / self.bandwidth


#: Peak rates of the makers' data sheets (SXM cards; PCIe 4 x16 and PCIe 5 x16 to the host).
HARDWARE = {
    "h100": Hardware(989e12, 3.35e12, 64e9),
    "a100": Hardware(312e12, 2.039e12, 32e9),
    "h200": Hardware(989e12, 4.8e12, 64e9),
}


@dataclass(frozen=True)
class Call:
    """One call of the model, in tokens: prefilled (all of its context, if the cache was dropped before), context, generated."""

    prefilled: float
    context: float
    generated: float


def gamma(bytes_per_token: float, parameters: float, hardware: Hardware) -> float:
    """Cost of one generated token's look at one token of context, in prefilled tokens.

    Reading b bytes takes b / bandwidth seconds, prefilling a token 2 N / flops.

    Example:
        8.03e9 parameters, 32 layers of width 4096 in 16 bits (524,288 bytes a token) on an H100: 0.00964.
    """
    return bytes_per_token / 2 * hardware.operational_intensity / parameters


def multi_head(layers: int, width: int) -> float:
    """Bytes a token of cache where every query head has keys of its own, at 16 bits: 4 L D, as the paper counts."""
    return 4 * layers * width


def hardware_of(name: str) -> Hardware:
    """A card of HARDWARE, in either case. Raises ValueError for another."""
    if name.lower() not in HARDWARE:
        raise ValueError(f"no figures for {name!r}, only for {', '.join(card.upper() for card in HARDWARE)}")
    return HARDWARE[name.lower()]


def pte(calls: Iterable[Call], gamma: float) -> float:
    """sum_i ( P_i + gamma S_i O_i ).

    Example:
        gamma 0.01, calls (1000, 1000, 100) and (1300, 1300, 50): 3950; with the cache kept, so that 200 are prefilled: 2850.
    """
    return sum(call.prefilled + gamma * call.context * call.generated for call in calls)
