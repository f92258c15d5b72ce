"""The k largest keys of every row: what is computed, and which implementation computes it."""

from jaxtyping import Array, Bool, Int32, UInt32

from kvjax.kernels.dispatch import Operation

from . import reference, xla

#: Implementations that run anywhere, by name; each module defines `select`.
IMPLEMENTATIONS = {"xla": xla, "reference": reference}
_OPERATION = Operation("selection by rank", IMPLEMENTATIONS, {"native": "cpu", "triton": "cuda"}, __package__)


def select_top(rank: UInt32[Array, "*rows n"], k: Int32[Array, "*rows"], *, impl: str | None = None) -> Bool[Array, "*rows n"]:
    """Mask of the k largest keys along the last axis; equal keys by lower index; never a key of 0.

    Args:
        rank: keys whose order is the order of keeping; 0 where there is no slot.
        k: how many; data, so one program serves every budget. Nothing for k <= 0, all slots where there are no more than k.
        impl: a key of IMPLEMENTATIONS or "native" (CPU) or "triton" (GPU); None chooses by platform.

    Raises:
        ValueError: an implementation that is unknown or cannot run here.
    """
    n = rank.shape[-1]
    found = _OPERATION.call(impl, "select", rank.reshape(-1, n), k.reshape(-1))
    return found.reshape(rank.shape)
