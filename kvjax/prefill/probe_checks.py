"""What can be wrong with a probe, said before anything is traced."""

from collections.abc import Iterable

import numpy as np

from kvjax import evidence as ev
from kvjax.checks import as_rows
from kvjax.evidence import Probed
from kvjax.prefill.attention import CausalAttention
from kvjax.prefill.prefilled import Prefilled
from kvjax.protocols import Decoder, LanguageModel
from kvjax.weights_mark import made_with

#: Start and stop of the prompt's keys that a probe is about.
Span = tuple[int, int]


def probe_needs(needs: object) -> tuple[Probed, ...]:
    """A set of needs as a probe records them."""
    given = [needs] if isinstance(needs, ev.Need) else needs
    if not isinstance(given, set | frozenset | list | tuple) or not all(isinstance(need, ev.Need) for need in given):
        raise TypeError(f"needs of a probe are a set such as {{kvjax.evidence.ColumnSums()}}; got {needs!r}")
    if not given:
        raise ValueError("a probe that records nothing changes nothing: name at least one need, such as ColumnSums()")
    found = ev.ordered(need if isinstance(need, Probed) else Probed(need) for need in given)
    for need in found:
        if need.need.token_wise:
            raise ValueError(f"{need.need!r} has one entry a token of the prompt: a probe has none of these to write")
    return found


def check_probe(
    lm: LanguageModel, pre: object, tokens: object, needs: Iterable[Probed], *, span: Span | None, sinks: int, chunk: int | None
) -> list[list[int]]:
    """One list of ids a prompt; raise TypeError or ValueError for everything that can be wrong, before anything is traced."""
    check_model(lm, pre)
    CausalAttention().check(lm.decoder, chunk)
    _check_names(pre, needs)
    rows = as_rows(tokens) or [[]]
    rows = rows * len(pre.rows) if len(rows) == 1 else rows
    if len(rows) != len(pre.rows):
        raise ValueError(f"{len(rows)} probes for {len(pre.rows)} prompts: give ids for all, or one list each")
    for r, (ids, length) in enumerate(zip(rows, pre.lengths, strict=True)):
        check_row(lm.decoder, r, ids, length)
        if span is not None and not 0 <= span[0] < span[1] <= length:
            raise ValueError(f"span={span} is no part of prompt {r}, which has {length} tokens: 0 <= start < stop <= {length}")
    if sinks < 0:
        raise ValueError(f"sinks is a number of first keys, 0 or more; got {sinks}")
    return rows


def check_model(lm: LanguageModel, pre: object) -> None:
    """Raise unless `pre` is a prefill of this model."""
    if not isinstance(pre, Prefilled):
        raise TypeError(f"expected prompts from kvjax.prefill(lm, ids); got {type(pre).__name__}")
    if pre.decoder != lm.decoder or pre.rows[0].k[0].dtype != lm.params["embed"]["weight"].dtype:
        raise ValueError("these prompts were prefilled with another model: pass the model that kvjax.prefill was given")
    if not made_with(lm, np.asarray(pre.made_by)):
        raise ValueError(
            "these prompts were prefilled with other weights than this model has: pass the model that kvjax.prefill was given"
        )


def _check_names(pre: Prefilled, needs: Iterable[Probed]) -> None:
    recorded = {need.key: need for need in pre.needs}
    for need in needs:
        if recorded.get(need.key, need) != need:
            raise ValueError(f"{recorded[need.key]!r} was probed before: give Probed({need.need!r}, name=...) a name of its own")


def check_row(decoder: Decoder, r: int, ids: list[int], length: int) -> None:
    if not ids:
        raise ValueError(f"the probe of prompt {r} is empty: it needs at least one token")
    if min(ids) < 0 or max(ids) >= decoder.vocab:
        raise ValueError(f"the probe of prompt {r} holds id {max(ids, key=abs)}, outside the vocabulary of {decoder.vocab}")
    if length + len(ids) > decoder.max_positions:
        raise ValueError(
            f"prompt {r} and its probe have {length} + {len(ids)} tokens, more than the model's context of {decoder.max_positions}"
        )
