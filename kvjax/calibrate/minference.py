"""Which sparse pattern each query head gets, and what that costs: MInference's offline search and its report."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from kvjax.artefacts.artefact import Artefact, model_facts
from kvjax.calibrate.sparse_layers import compared_layers
from kvjax.prefill.minference import MInference
from kvjax.prefill.patterns import AShape, BlockSparse, Pattern, VerticalSlash, as_table
from kvjax.protocols import LanguageModel

#: What the released search tries.
CANDIDATES = (
    AShape(100, 800), VerticalSlash(30, 800), VerticalSlash(100, 750), VerticalSlash(500, 700), VerticalSlash(3500, 100),
    BlockSparse(100),
)  # fmt: skip


class SparseReport(NamedTuple):
    """A sparse prefill against exact attention, [layers, query heads] each: see `Compared`."""

    mass: Float[np.ndarray, "l q"]
    error: Float[np.ndarray, "l q"]
    share: Float[np.ndarray, "l q"]


def report(lm: LanguageModel, ids: list[int], attention: MInference) -> SparseReport:
    """Of each query head: attention mass held, relative error of the output, share of tiles computed.

    Every layer is compared on the inputs that exact attention gives it.

    Args:
        lm: a language model.   ids: one prompt.   attention: what it would be read with.
    """
    layers = [found for (found,) in compared_layers(lm, ids, [attention])]
    return SparseReport(*(np.stack([np.asarray(getattr(layer, name)) for layer in layers]) for name in SparseReport._fields))


def best(mass: Float[np.ndarray, "c l q"], candidates: Sequence[Pattern]) -> tuple[tuple[Pattern, ...], ...]:
    """The candidate that holds most of each head's attention; equal ones: the earlier."""
    return tuple(tuple(candidates[c] for c in layer) for layer in np.argmax(mass, 0))


def as_released(pattern: Pattern) -> Pattern:
    """The released files' rewriting: an A-shape as vertical-slash of its sizes, block-sparse as vertical-slash (1000, 6096)."""
    if isinstance(pattern, AShape):
        return VerticalSlash(pattern.first, pattern.recent)
    return VerticalSlash() if isinstance(pattern, BlockSparse) else pattern


def scaled(pattern: Pattern, scale: float) -> Pattern:
    """The pattern with each of its sizes times `scale`, rounded; what was not 0 stays at least 1.

    The release's candidates cost about the same in a prompt of 30,000 tokens. In one of 8,192 its block-sparse one is nearly all of
    attention, and holds most mass for that alone; a quarter of every size makes them alike again.
    """
    sizes = {field.name: getattr(pattern, field.name) for field in fields(pattern)}
    return replace(pattern, **{name: max(min(size, 1), round(size * scale)) for name, size in sizes.items()})


def assign(
    lm: LanguageModel, ids: list[int], candidates: Sequence[Pattern] = CANDIDATES, *, first: int = 2500, rewritten: bool = False
) -> Artefact:
    """A pattern for each query head: that which holds most attention mass of the queries from `first` on.

    Args:
        lm: a language model.   ids: one prompt, in the paper a retrieval task of up to 30,000 tokens.
        candidates: patterns to try.   first: the first query counted.   rewritten: as the released files have them.

    Source: MInference, arXiv 2407.02490, section 3.2; the released search's score. Differs: one sample and one score; the release's
    second search, which counts outputs off by more than 0.005, is not made.
    """
    layers = [
        [np.asarray(found.mass) for found in layer]
        for layer in compared_layers(lm, ids, [MInference(pattern) for pattern in candidates], first=first)
    ]
    mass = np.stack(layers, 1)
    chosen = best(mass, candidates)
    if rewritten:
        chosen = tuple(tuple(map(as_released, layer)) for layer in chosen)
    settings = {"candidates": [repr(pattern) for pattern in candidates], "first": first, "rewritten": rewritten}
    data = {"source": "given ids", "samples": 1, "tokens": len(ids)}
    tables = {"patterns": as_table(chosen), "mass": mass.max(0).astype(np.float32)}
    return Artefact(method="minference", model=model_facts(lm), data=data, settings=settings, tables=tables)
