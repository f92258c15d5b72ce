"""Where the k largest keys of every row are: what is computed, and which implementation computes it."""

from jaxtyping import Array, Int32, UInt32

from kvjax.kernels.dispatch import Operation

from . import reference, xla

#: Implementations by name; each module defines `listed`.
IMPLEMENTATIONS = {"xla": xla, "reference": reference}
_OPERATION = Operation("listing by rank", IMPLEMENTATIONS, {"native": "cpu"}, __package__)


def list_top(
    rank: UInt32[Array, "*rows n"], k: Int32[Array, "*rows"], *, most: int, impl: str | None = None
) -> Int32[Array, "*rows m"]:
    """Indices of the k largest keys along the last axis, ascending, in the first k of `most` places; equal keys by lower index.

    Args:
        rank: keys whose order is the order of choice; never one of 0.
        k: how many; data, so one program serves all numbers.   most: places of a list, at least any k; static.
        impl: a key of IMPLEMENTATIONS or "native" (CPU); None chooses by platform.

    Returns:
        Places from k on, or from the number of keys above 0 on where that is less, hold any index.

    Raises:
        ValueError: no place, or more than there are keys; an implementation that is unknown or cannot run here.
    """
    n = rank.shape[-1]
    if not 1 <= most <= n:
        raise ValueError(f"a list has 1 to {n} places, as many as keys at most; got most={most}")
    found = _OPERATION.call(impl, "listed", rank.reshape(-1, n), k.reshape(-1), most=most)
    return found.reshape(*rank.shape[:-1], most)
