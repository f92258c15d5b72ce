"""Upper bounds of products with the keys of pages: what is computed, and which implementation computes it."""

from jaxtyping import Array, Float, Float32, Int32

from kvjax.kernels.dispatch import Operation

from . import reference, xla

#: Implementations by name; each module defines `bounds`.
IMPLEMENTATIONS = {"xla": xla, "reference": reference}
_OPERATION = Operation("bound scores", IMPLEMENTATIONS, {"native": "cpu"}, __package__)


def bound_scores(
    q: Float[Array, "b h g d"], low: Float[Array, "b h p d"], high: Float[Array, "b h p d"], full: Int32[Array, "b h"], *,
    impl: str | None = None,
) -> Float32[Array, "b h g p"]:  # fmt: skip
    """u_p = Σ_c max(q_c M_pc, q_c m_pc): no key of page p has a greater product with the query. -inf behind a head's pages.

    Args:
        q: queries.   low, high: m and M, least and greatest of each page's keys, channel by channel.
        full: pages that each head has.
        impl: a key of IMPLEMENTATIONS or "native" (CPU); None chooses by platform.

    Raises:
        ValueError: shapes that do not fit, an unknown implementation.

    Source: Quest, arXiv 2406.10774, algorithm 1.
    """
    _check(q, low, high, full)
    return _OPERATION.call(impl, "bounds", q, low, high, full)


def _check(q, low, high, full) -> None:
    """Refuse what would otherwise fail, or broadcast, far from the caller."""
    if low.ndim != 4 or low.shape != high.shape or q.shape != (*low.shape[:2], *q.shape[2:3], low.shape[3]):
        raise ValueError(f"q must be [b, h, g, d], low and high [b, h, p, d]; got {q.shape}, {low.shape} and {high.shape}")
    if full.shape != low.shape[:2]:
        raise ValueError(f"full must hold the pages of each head, {low.shape[:2]}; got shape {full.shape}")
