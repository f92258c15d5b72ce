"""Who watches whom: pivots and their satellites, as static structure that programs are compiled for."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from kvjax.head_roles import PIVOT, SATELLITE, is_full
from kvjax.types import Number


@dataclass(frozen=True)
class Clusters:
    """Roles and clusters of all KV heads, hashable.

    Args:
        role: [L][H], 1 anchor, 2 volatile, 3 pivot, 4 satellite.
        pivot: [L][H], the index of its pivot in the layer for pivots and satellites, -1 for the others.

    Raises:
        ValueError: a satellite whose pivot is none.
    """

    role: tuple[tuple[int, ...], ...] = field(repr=False)
    pivot: tuple[tuple[int, ...], ...] = field(repr=False)

    @classmethod
    def of(cls, role: Number, cluster: Number) -> "Clusters":
        """From tables [L, H]."""
        role, cluster = np.asarray(role), np.asarray(cluster)
        if role.ndim != 2 or role.shape != cluster.shape:
            raise ValueError(f"roles and clusters are tables [layers, KV heads] of one shape; got {role.shape} and {cluster.shape}")
        for layer, h in np.argwhere(role == SATELLITE).tolist():
            p = int(cluster[layer, h])
            if not 0 <= p < role.shape[1] or role[layer, p] != PIVOT:
                raise ValueError(f"satellite {h} of layer {layer} belongs to head {p}, which is no pivot: calibrate again")

        def rows(x):
            return tuple(tuple(int(i) for i in row) for row in x)

        return cls(role=rows(role), pivot=rows(cluster))

    @property
    def tables(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Roles and pivots."""
        return self.role, self.pivot

    @property
    def shape(self) -> tuple[int, int]:
        """Layers, KV heads."""
        return len(self.role), len(self.role[0])

    @cached_property
    def pivots(self) -> tuple[tuple[int, int], ...]:
        """(layer, head) of the pivots that have satellites."""
        pairs = np.argwhere(np.asarray(self.role) == PIVOT).tolist()
        return tuple((layer, h) for layer, h in pairs if self._members(layer, h))

    @cached_property
    def satellites(self) -> tuple[tuple[int, int, int], ...]:
        """(layer, head, index of its pivot in `pivots`), pivot by pivot."""
        return tuple((layer, m, p) for p, (layer, h) in enumerate(self.pivots) for m in self._members(layer, h))

    def _members(self, layer: int, pivot: int) -> list[int]:
        heads = zip(self.role[layer], self.pivot[layer], strict=True)
        return [h for h, (role, p) in enumerate(heads) if role == SATELLITE and p == pivot]

    def of_layer(self, layer: int) -> list[tuple[int, int]]:
        """(index in `pivots`, head) of a layer's pivots."""
        return [(p, h) for p, (at, h) in enumerate(self.pivots) if at == layer]

    @cached_property
    def satellite(self) -> np.ndarray:
        """Which heads are satellites, bool [L, H]."""
        return np.asarray(self.role) == SATELLITE

    @cached_property
    def full(self) -> np.ndarray:
        """Which heads keep the whole prompt on the device, bool [L, H]."""
        return is_full(np.asarray(self.role))
