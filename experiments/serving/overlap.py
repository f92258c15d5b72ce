"""NEO's overlap: two sub-batches, one on the device while the host attends for the other; which plan of an iteration is faster.

Sub-batch 0 holds prefills, decodes whose cache is on the device, and a few whose cache is on the host; sub-batch 1 holds decodes on
the host. Times are seconds (or any one unit) from measured tables, linear between the points measured.
Source: NEO, arXiv 2411.01142, section 3.2. Differs: requests have one size each; nothing is moved between device and host.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Line:
    """Time against tokens: measured points, linear between them; before the first its time, beyond the last by the last slope.

    Where the last point is below the one before it, which is noise of measuring, time stays level beyond it.
    """

    tokens: tuple[float, ...]
    times: tuple[float, ...]

    def __post_init__(self):
        if len(self.tokens) != len(self.times) or len(self.tokens) < 2 or list(self.tokens) != sorted(set(self.tokens)):
            raise ValueError(f"a table has at least two points, tokens ascending, a time for each; got {self.tokens}, {self.times}")

    def __call__(self, tokens: float) -> float:
        if tokens <= self.tokens[-1]:
            return float(np.interp(tokens, self.tokens, self.times))
        slope = (self.times[-1] - self.times[-2]) / (self.tokens[-1] - self.tokens[-2])
        return self.times[-1] + max(slope, 0.0) * (tokens - self.tokens[-1])


@dataclass(frozen=True)
class Plane:
    """Time against requests and their total length: a grid of points, linear in both between them."""

    requests: tuple[float, ...]
    lengths: tuple[float, ...]
    times: tuple[tuple[float, ...], ...]

    def __call__(self, requests: float, length: float) -> float:
        rows = tuple(Line(self.lengths, row)(length) for row in self.times)
        return Line(self.requests, rows)(requests)


@dataclass(frozen=True)
class Profile:
    """What a machine needs: the layers' products by tokens, attention by requests and total length (prefill: by tokens)."""

    linear: Line
    prefill: Line
    device: Plane
    host: Plane


@dataclass(frozen=True)
class SubBatch:
    """Requests that run together: prompts by their tokens, decodes by the length of their caches."""

    prefills: tuple[int, ...] = ()
    device: tuple[int, ...] = ()
    host: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens that go through the layers."""
        return sum(self.prefills) + len(self.device) + len(self.host)


@dataclass(frozen=True)
class Times:
    """One sub-batch's times."""

    linear: float
    prefill: float
    device: float
    host: float


def times(batch: SubBatch, profile: Profile) -> Times:
    """Of one sub-batch by itself."""

    def of(plane, lengths):
        return plane(len(lengths), sum(lengths)) if lengths else 0.0

    return Times(
        linear=profile.linear(batch.tokens) if batch.tokens else 0.0,
        prefill=sum(map(profile.prefill, batch.prefills)),
        device=of(profile.device, batch.device),
        host=of(profile.host, batch.host),
    )


def slack(own: Times, other: Times) -> float:
    """linear(other) + prefill + device attention - host attention: what is left while the host attends for `own`."""
    return other.linear + own.prefill + own.device - own.host


@dataclass(frozen=True)
class Plan:
    """One iteration.

    Attributes:
        batches: the sub-batches; the second is empty where nothing overlaps.   seconds: how long it takes.
        waiting: host requests that are not served this time.
    """

    batches: tuple[SubBatch, SubBatch]
    seconds: float
    waiting: tuple[int, ...] = ()

    @property
    def throughput(self) -> float:
        """Tokens a unit of time: every prompt's and every decode's."""
        return sum(batch.tokens for batch in self.batches) / self.seconds if self.seconds else 0.0


def overlapped(batches: Sequence[SubBatch], profile: Profile) -> Plan:
    """Both sub-batches, host requests dropped, the longest first, until the host is never waited for.

    It takes as long as the device works: Σ_j linear_j + prefill_j + device attention_j.
    """
    one, two = batches
    waiting: list[int] = []
    while True:
        mine = times(one, profile), times(two, profile)
        short = [j for j in (0, 1) if slack(mine[j], mine[1 - j]) < 0]
        if not short:
            return Plan((one, two), sum(t.linear + t.prefill + t.device for t in mine), tuple(waiting))
        drop = max((one, two)[short[-1]].host)
        waiting.append(drop)
        one, two = (_without(x, drop) if j == short[-1] else x for j, x in enumerate((one, two)))


def device_only(batches: Sequence[SubBatch], profile: Profile) -> Plan:
    """The prefills and the device's decodes in one batch; all host requests wait."""
    one, two = batches
    both = SubBatch(prefills=one.prefills + two.prefills, device=one.device + two.device)
    found = times(both, profile)
    return Plan((both, SubBatch()), found.linear + found.prefill + found.device, one.host + two.host)


def plan(batches: Sequence[SubBatch], profile: Profile) -> Plan:
    """The overlapped plan if it makes more tokens a unit of time than the device alone."""
    together, alone = overlapped(batches, profile), device_only(batches, profile)
    return together if together.throughput > alone.throughput else alone


def _without(batch: SubBatch, length: int) -> SubBatch:
    """The sub-batch without one host request of this length."""
    at = batch.host.index(length)
    return replace(batch, host=batch.host[:at] + batch.host[at + 1 :])
