"""Which sparse pattern each query head gets, and what that costs: MInference's offline search and its report."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import ClassVar, NamedTuple

import numpy as np
from jaxtyping import Float

from kvjax.artefacts.artefact import Artefact, model_facts
from kvjax.calibrate.sparse_layers import compared_layers
from kvjax.kernels.sparse_attention import BLOCK
from kvjax.prefill.minference import MInference
from kvjax.prefill.patterns import AShape, BlockSparse, Pattern, VerticalSlash, as_table
from kvjax.protocols import LanguageModel

#: The released search's sizes; what it tries block-sparse heads with is `searched`, and the 100 blocks are its kernel's.
CANDIDATES = (
    AShape(100, 800), VerticalSlash(30, 800), VerticalSlash(100, 750), VerticalSlash(500, 700), VerticalSlash(3500, 100),
    BlockSparse(100),
)  # fmt: skip
#: The search lets a block-sparse head see one block in so many.
SEARCH_RATIO = 8


class Searched(MInference):
    """A pattern as the released search tries it: 30 offsets are forced, where its kernel forces 100."""

    nearest: ClassVar[int] = 30


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


def searched(pattern: Pattern, tokens: int) -> Searched:
    """What a candidate is tried as on a prompt of so many tokens: block-sparse heads with an eighth of its blocks.

    Of 30,000 keys the release's search lets a block-sparse head see 3,744 (117 blocks of 32), its kernel 6,400.
    """
    if isinstance(pattern, BlockSparse):
        pattern = BlockSparse(max(1, -(-tokens // BLOCK) // SEARCH_RATIO))
    return Searched(pattern)


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

    The release's sizes are for a prompt of 30,000 tokens. In one of 8,192 its 3,500 columns are two fifths of all keys, and hold
    most mass for that alone, while block-sparse heads are tried with an eighth of any prompt; a quarter of every size makes them
    alike again.
    """
    sizes = {field.name: getattr(pattern, field.name) for field in fields(pattern)}
    return replace(pattern, **{name: max(min(size, 1), round(size * scale)) for name, size in sizes.items()})


def assign(
    lm: LanguageModel, ids: list[int], candidates: Sequence[Pattern] = CANDIDATES, *, first: int = 2500, rewritten: bool = False
) -> Artefact:
    """A pattern for each query head: that which, as it is `searched`, holds most attention mass of the queries from `first` on.

    Args:
        lm: a language model.   ids: one prompt, in the paper a retrieval task of up to 30,000 tokens.
        candidates: patterns to try.   first: the first query counted.   rewritten: as the released files have them.

    Source: MInference, arXiv 2407.02490, section 3.2; the released search's score. Differs: one sample and one score; the release's
    second search, which counts outputs off by more than 0.005, is not made; block-sparse heads are tried with blocks of 64, a
    query's own always among them, where the release's are of 32 and chosen by score alone.
    """
    layers = [
        [np.asarray(found.mass) for found in layer]
        for layer in compared_layers(lm, ids, [searched(pattern, len(ids)) for pattern in candidates], first=first)
    ]
    mass = np.stack(layers, 1)
    chosen = best(mass, candidates)
    if rewritten:
        chosen = tuple(tuple(map(as_released, layer)) for layer in chosen)
    settings = {"candidates": [repr(pattern) for pattern in candidates], "first": first, "rewritten": rewritten}
    data = {"source": "given ids", "samples": 1, "tokens": len(ids)}
    tables = {"patterns": as_table(chosen), "mass": mass.max(0).astype(np.float32)}
    return Artefact(method="minference", model=model_facts(lm), data=data, settings=settings, tables=tables)
