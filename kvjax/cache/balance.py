"""Which device holds which heads, or rows: as even as longest-first and exchanges make it, with equally many on every device.

Every device has the same number of regions a layer, so that one program serves all of them whatever is held where; what is left to
choose is which. Longest first (LPT) gives each to the device that holds the least so far among those with a place left. Then the
fullest device exchanges the pair that lowers the larger of the two loads most, until no exchange lowers it.
"""

import numpy as np
from jaxtyping import Int32


def balance(slots: np.ndarray, devices: int) -> Int32[np.ndarray, "devices l m"]:
    """Indices of the items that each device holds, ascending, the same number of every layer on every device.

    load_d = Σ_l Σ_{i of d} slots[l, i]; LPT and exchanges lower max_d load_d.

    Args:
        slots: planned slots, int [l, n]: of n heads in l layers, or of n rows as one layer.
        devices: how many share them; divides n.

    Returns:
        int32 [devices, l, n / devices].

    Raises:
        ValueError: a number of devices that does not divide n.

    Source: Graham, "Bounds on Multiprocessing Timing Anomalies", 1969 (LPT).
    Differs: a device has n / devices places a layer, and exchanges follow.

    Example:
        balance(np.array([[90, 10, 20, 80]]), 2)  # [[[0, 1]], [[2, 3]]]: 100 slots each
    """
    slots = np.asarray(slots, np.int64)
    if devices < 1 or slots.shape[1] % devices:
        raise ValueError(f"{devices} devices do not divide {slots.shape[1]} items: use a number that does")
    owner = _longest_first(slots, devices)
    load = np.array([np.where(owner == d, slots, 0).sum() for d in range(devices)])
    while _exchanged(slots, owner, load):
        pass
    places = slots.shape[1] // devices
    return np.stack([np.nonzero(owner == d)[1].reshape(len(slots), places) for d in range(devices)]).astype(np.int32)


def imbalance(loads: np.ndarray) -> float:
    """max / mean - 1 of what devices hold; 0 where all hold the same."""
    loads = np.asarray(loads, np.float64).reshape(-1)
    return float(loads.max() / loads.mean() - 1) if loads.any() else 0.0


def _longest_first(slots: np.ndarray, devices: int) -> np.ndarray:
    """The device of every item [l, n], longest first over all layers."""
    layers, n = slots.shape
    free, load = np.full((layers, devices), n // devices), np.zeros(devices, np.int64)
    owner = np.zeros((layers, n), np.int64)
    for item in np.argsort(-slots, axis=None, kind="stable"):
        layer, i = divmod(int(item), n)
        device = int(np.where(free[layer] > 0, load, np.iinfo(np.int64).max).argmin())
        owner[layer, i] = device
        free[layer, device] -= 1
        load[device] += slots[layer, i]
    return owner


def _exchanged(slots: np.ndarray, owner: np.ndarray, load: np.ndarray) -> bool:
    """Exchange the best pair of the fullest device with another's, in place; False where none lowers the larger load."""
    full, best, pair = int(load.argmax()), int(load.max()), None
    for layer in range(len(slots)):
        mine, others = np.nonzero(owner[layer] == full)[0], np.nonzero(owner[layer] != full)[0]
        if not len(others):
            continue
        less = slots[layer, mine][:, None] - slots[layer, others]
        larger = np.maximum(load[full] - less, load[owner[layer, others]] + less)
        at = int(larger.argmin())
        if larger.flat[at] < best:
            best, pair = int(larger.flat[at]), (layer, mine[at // len(others)], others[at % len(others)])
    if pair is None:
        return False
    layer, i, j = pair
    other, less = int(owner[layer, j]), slots[layer, i] - slots[layer, j]
    owner[layer, i], owner[layer, j] = other, full
    load[full], load[other] = load[full] - less, load[other] + less
    return True
