"""Bytes that crossed from the host to the device while tokens were decoded, by the retrievers' own counters."""

from dataclasses import dataclass

import numpy as np

import kvjax
from kvjax.retrieve.elsewhere import Fetching
from kvjax.retrieve.pivot_state import PivotState


@dataclass(frozen=True)
class Traffic:
    """Bytes a decode step of the batch: moved, and those of them that were asked for; None where nobody counts."""

    moved: float | None
    asked: float | None


def traffic(cache: kvjax.KVCache, steps: int) -> Traffic:
    """What crossed a step, mean over the `steps` that `cache` decoded since it was made.

    `moved_nbytes` and `fetched_nbytes` of the retriever's state; 0 where nothing is held on the host.
    """
    state = cache.retrieval
    if isinstance(state, Fetching | PivotState):
        moved, asked = (float(np.asarray(x, np.int64).sum()) / steps for x in (state.moved_nbytes, state.fetched_nbytes))
        return Traffic(moved, asked)
    return Traffic(0.0, 0.0) if cache.host_nbytes == 0 else Traffic(None, None)
