"""What KV heads are for, as HeteroCache names it: numbers of a table [layers, KV heads]."""

import numpy as np
from jaxtyping import Bool, Int

ANCHOR, VOLATILE, PIVOT, SATELLITE = 1, 2, 3, 4
#: Their names, by number.
NAMES = {ANCHOR: "anchor", VOLATILE: "volatile", PIVOT: "pivot", SATELLITE: "satellite"}


def is_full(role: Int[np.ndarray, "*x"]) -> Bool[np.ndarray, "*x"]:
    """Heads that keep the whole prompt on the device."""
    return (role == VOLATILE) | (role == PIVOT)
