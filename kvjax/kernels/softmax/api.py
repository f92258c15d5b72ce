"""Softmax of scores over the slots: what is computed, and which implementation computes it."""

from jaxtyping import Array, Float32

from kvjax.kernels.dispatch import Operation

from . import reference, xla

#: Implementations that run anywhere, by name; each module defines `probabilities`.
IMPLEMENTATIONS = {"xla": xla, "reference": reference}
_OPERATION = Operation("softmax", IMPLEMENTATIONS, {"native": "cpu"}, __package__)


def softmax(scores: Float32[Array, "*rows n"], *, impl: str | None = None) -> Float32[Array, "*rows n"]:
    """exp(s_j) / Σ exp(s) along the last axis; 0 where every score of a row is -inf.

    Args:
        scores: -inf where a query sees no slot.
        impl: a key of IMPLEMENTATIONS or "native" (CPU); None chooses by platform.

    Raises:
        ValueError: an implementation that is unknown or cannot run here.
    """
    return _OPERATION.call(impl, "probabilities", scores.reshape(-1, scores.shape[-1])).reshape(scores.shape)
