"""Sparse prefill: seconds to read a prompt with MInference's patterns beside exact attention, and what the patterns miss."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax

import kvjax
from experiments.bench import conditions, interleaved, summary
from kvjax.calibrate.minference import report
from kvjax.prefill import CausalAttention, MInference, PrefillAttention
from kvjax.protocols import LanguageModel
from kvjax.train import forward_kl

EXACT = "exact"


def sparse_prefill(
    lm: LanguageModel, ids: Sequence[int], patterns: Mapping[str, MInference], *, rounds: int, done: Callable = lambda count: None
) -> dict[str, Any]:
    """Read `ids` exactly and with each of `patterns`, in turns.

    Returns:
        conditions, seconds by attention, and of each of `patterns` the mean over query heads of: tiles of 64 by 64 computed as a
        share of those under the diagonal, attention mass held, relative error of a layer's output on exact inputs; and
        KL(exact ‖ sparse) of what the last token predicts, in nats.
    """
    dtype = str(lm.params["embed"]["weight"].dtype)
    attentions = {EXACT: CausalAttention(), **patterns}
    work = {name: partial(_read, lm, ids, attention) for name, attention in attentions.items()}
    seconds = interleaved(work, rounds, done=done)
    exact, cells = _read(lm, ids, CausalAttention()), {}
    for name, attention in patterns.items():
        found = report(lm, list(ids), attention)
        kl = float(forward_kl(exact, _read(lm, ids, attention)))
        cells[name] = {
            "tiles": float(found.share.mean()), "mass": float(found.mass.mean()), "error": float(found.error.mean()),
            "nats of the next token": kl,
        }  # fmt: skip
        done(1)
    times = {name: summary(values) for name, values in seconds.items()}
    return conditions("sparse-prefill", dtype, f"{len(ids)} tokens, batch 1") | {
        "seconds": times,
        "cells": cells,
        "ratios": {f"{EXACT} / {name}": times[EXACT]["median"] / times[name]["median"] for name in patterns},
    }


def _read(lm: LanguageModel, ids: Sequence[int], attention: PrefillAttention) -> jax.Array:
    """Logits of the last token."""
    return kvjax.prefill(lm, list(ids), needs=frozenset(), attention=attention).rows[0].logits
