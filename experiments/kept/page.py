"""What policies kept of a prompt, as one HTML page that needs no network: heads, the prompt from left to right, its tokens."""

import base64
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from experiments.full_cache import MB, OF_HALF
from experiments.kept.charts import COLOURS, along, heat, row_of, rows, table_of
from experiments.kept.held import Held
from experiments.pages import Json, environment
from experiments.pages.charts import charts
from experiments.pages.table import Cell, Head

#: Points of the curve along the prompt; of a longer prompt each stands for several tokens.
STRETCHES = 256
SUMMARY = (
    Head("policy", "a method of kvjax, with its budget", "ascending", True),
    Head("kept", "share of the slots of all heads"),
    Head("device MB", "10^6 bytes allocated on the device for the prompt, with positions and rounding", "ascending"),
    Head(OF_HALF, "device MB as a share of keys and values of all tokens in 16-bit numbers", "ascending"),
    Head("host MB", "10^6 bytes in host memory", "ascending"),
    Head("tables MB", "10^6 bytes of codebooks, gates and the like, once for all prompts", "ascending"),
)
HEADS = (
    Head("policy", "a method of kvjax, with its budget", "ascending", True),
    Head("layer", "", "ascending"),
    Head("KV head", "", "ascending"),
    Head("slots", "prompt tokens that the head holds"),
    Head("share kept", "slots over prompt tokens"),
)


def render(found: Sequence[Held], words: Sequence[tuple[str, int]], *, model: str, full: int, half: float, command: str) -> str:
    """The page.

    Args:
        found: what each policy holds of one prompt of n tokens.
        words: (text, tokens it took) of each piece of the prompt (`experiments.token_text`), n tokens in all.
        model: its name, with the dtype.   full, half: bytes of the full cache, in that dtype and in 16 bits.
        command: the one that wrote the page.

    Raises:
        ImportError: the extra `pages` is not installed.
    """
    layers, heads, tokens = found[0].mask.shape
    made = rows(found)
    most = max(float(held.mask.mean(-1).max()) for held in found)
    drawn = {"share": {"heat": heat(layers, heads, most), "along": along([held.name for held in found], tokens)}}
    return environment().get_template("show.html").render(
        title=f"What was kept: {', '.join(held.name for held in found)}",
        model=model,
        tokens=tokens,
        stretch=-(-tokens // STRETCHES),
        full=f"{full / MB:.2f} MB ({full} bytes)",
        summary_heads=SUMMARY,
        summary=[_summary(held, half) for held in found],
        layers=range(layers),
        heads=range(heads),
        shown=[_shown(i, held, words) for i, held in enumerate(found)],
        head_heads=HEADS,
        head_rows=[_row(i, found[i], layer, head) for i in range(len(found)) for layer in range(layers) for head in range(heads)],
        command=command,
        charts=charts(made, drawn, page=_data(found, words)),
    )  # fmt: skip


def _data(found: Sequence[Held], words: Sequence[tuple[str, int]]) -> Json:
    """What shades tokens: the packed masks [l, h, ceil(n / 8)] of every policy, and where each piece begins and ends."""
    bits = [base64.b64encode(np.packbits(held.mask, axis=-1).tobytes()).decode() for held in found]
    policies = [{"table": table_of(i), "name": held.name, "bits": bits[i]} for i, held in enumerate(found)]
    layers, heads, tokens = found[0].mask.shape
    ends = [0, *accumulate(count for _, count in words)]
    return {"layers": layers, "heads": heads, "tokens": tokens, "edges": ends, "policies": policies}


def _summary(held: Held, half: float) -> list[Cell]:
    return [
        Cell(held.name, words=True), Cell(f"{100 * held.share:.1f}%", held.share), Cell(f"{held.device / MB:.2f}", held.device),
        Cell(f"{100 * held.device / half:.0f}%", held.device), Cell(f"{held.host / MB:.2f}", held.host),
        Cell(f"{held.tables / MB:.2f}", held.tables),
    ]  # fmt: skip


def _row(index: int, held: Held, layer: int, head: int) -> dict[str, object]:
    slots, tokens = int(held.mask[layer, head].sum()), held.mask.shape[2]
    numbers = [Cell(str(layer), layer), Cell(str(head), head), Cell(str(slots), slots), Cell(f"{100 * slots / tokens:.1f}%", slots)]
    cells = [Cell(held.name, colour=COLOURS[index], words=True), *numbers]
    return {"key": row_of(index, layer, head), "method": held.name, "layer": layer, "head": head, "cells": cells}


def _shown(index: int, held: Held, words: Sequence[tuple[str, int]]) -> dict[str, object]:
    """A policy's panel of text: each piece with the share of heads that keep it, a mean over its tokens."""
    share = held.mask.mean((0, 1))
    edges = [0, *accumulate(count for _, count in words)]
    shades = [float(share[a:b].mean()) for a, b in zip(edges, edges[1:], strict=False)]
    pieces = [{"text": visible(text), "shade": f"{shade:.3f}"} for (text, _), shade in zip(words, shades, strict=True)]
    return {"name": held.name, "table": table_of(index), "colour": COLOURS[index], "repr": held.policy_repr, "pieces": pieces}


def visible(text: str) -> str:
    """A line break stays one, marked so that it can be shaded and pointed at."""
    return text.replace("\r", "").replace("\n", "⏎\n")
