"""What an answer cost beside its score: KV footprint, prefill token equivalents, tokens, time to the first token.

A task's rows bring what only it sees (`Spent`); `of_row` makes the figures of a result row of it and of the cell's own facts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

import kvjax
from experiments.footprint import Footprint, footprint, thinned
from experiments.prefill_equivalents import Call, gamma, hardware_of, multi_head, pte

#: The card whose ratio of FLOP/s to bytes/s PTE is given for.
CARD = "H100"
#: The figures, as rows and reports name them.
FIGURES = ("kv_footprint", "kv_peak", "pte", "pte_stored", "answer_tokens", "seconds_to_first_token")


@dataclass(frozen=True)
class Spent:
    """Of one row: tokens fed after the prompt, tokens generated, entries a head holds at the end (mean), seconds of feeding."""

    fed: int
    generated: int
    held: float
    seconds: float


def spent(out: kvjax.Decoded, fed: Sequence[int], seconds: float) -> list[Spent]:
    """What each row of a decoding took, that many tokens fed; `seconds` of feeding the batch are shared by its rows."""
    held, rows = out.cache.held.mean((0, 2)), len(fed)
    counts = enumerate(zip(fed, out.lengths, strict=True))
    return [Spent(told, int(count), float(held[row]), seconds / rows) for row, (told, count) in counts]


def layer_tokens(cache: kvjax.KVCache, length: int) -> list[int]:
    """Tokens of one prompt that each layer computed, where those that no head of a layer keeps left it while it was read."""
    stayed = [len(np.unique(np.concatenate(cache.kept(layer)[0]))) for layer in range(cache.lengths.shape[0] - 1)]
    return [length, *stayed]


def of_row(lm: Any, facts: Mapping[str, Any], row: Spent) -> dict[str, float]:
    """FIGURES of a row, from its cell's facts: prompt_tokens, held_slots, stored_bits, the seconds, layer_tokens if any left.

    Entries count wherever they are, in the pool or with the retriever. `pte` takes the paper's gamma and the whole context,
    whatever is kept; `pte_stored` counts entries held, heads that share keys, and their bits (`experiments.stored_bits`).
    """
    tokens, decoder = facts["prompt_tokens"], lm.decoder
    held = facts["held_slots"] / (decoder.layers * decoder.heads), row.held
    found = _footprint(facts, row, held)
    parameters, width = sum(x.size for x in jax.tree.leaves(lm.params)), lm.params["embed"]["weight"].shape[1]
    reading = gamma(multi_head(decoder.layers, width), parameters, hardware_of(CARD))
    prefilled = tokens + row.fed
    stored = reading * decoder.heads * decoder.head_dim / width * facts["stored_bits"] / 16
    first = facts["seconds_compress"] + row.seconds
    return {
        "kv_footprint": found.footprint,
        "kv_peak": found.peak,
        "pte": pte([Call(prefilled, prefilled, row.generated)], reading),
        "pte_stored": pte([Call(prefilled, (held[0] + row.fed + row.held) / 2, row.generated)], stored),
        "answer_tokens": row.generated,
        "seconds_to_first_token": first,
    }


def _footprint(facts: Mapping[str, Any], row: Spent, held: tuple[float, float]) -> Footprint:
    more = row.fed + row.generated
    if "layer_tokens" in facts:
        return thinned(facts["layer_tokens"], more, held=held)
    return footprint([(0, facts["prompt_tokens"])], more, held=held)
