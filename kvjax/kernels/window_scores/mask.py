"""Which slots the last queries of a text see."""

from jaxtyping import Array, Bool, Int32


def sees(
    pos: Int32[Array, "b h n"], valid: Bool[Array, "b h n"], at: Int32[Array, "b w"], window: Int32[Array, " b"] | None = None
) -> Bool[Array, "b h 1 w n"]:
    """Valid slots j with pos_j <= at_i of queries at at_i, and with at_i - pos_j < window where the layer has a sliding window."""
    pos, at = pos[:, :, None, None], at[:, None, None, :, None]
    seen = valid[:, :, None, None] & (pos <= at)
    return seen if window is None else seen & (at - pos < window[:, None, None, None, None])
