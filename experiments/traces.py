"""What a sweep remembers of one prompt beside its rows: slots of every head, where in the text they lie, and drift.

A trace is one line of `F.traces.jsonl` beside the result file `F.jsonl`: the fields of `rows.KEY` and `rows.IDENTITY` as in
the row, and what the functions here give. Such a file is a `rows.RowFile`: resumed, never torn, never mixed.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np

import kvjax
from experiments.kept.mask import kept_mask
from experiments.rows import IDENTITY, KEY, Row, RowFile, key
from kvjax.retrieve.pivot_state import PivotState

#: Stretches the prompt is divided into; of a longer prompt each stands for more tokens.
STRETCHES = 64
#: What a trace repeats of its row; the depth is that of a needle.
REPEATED = (*KEY, *IDENTITY, "policy", "depth")


def beside(path: str | Path) -> Path:
    """`out/F.jsonl` -> `out/F.traces.jsonl`; a device or a pipe has no neighbours: nowhere."""
    path = Path(path)
    if path.exists() and not path.is_file():
        return Path(os.devnull)
    return path.with_name(f"{path.stem}.traces.jsonl")


def keep(file: RowFile, row: Row, trace: Row | None) -> None:
    """Append `trace` of the cell that `row` measures, unless there is none or the file has it.

    Called before the row is written: a sweep killed in between measures the cell again and finds its trace there.
    """
    if trace is not None and key(row) not in file:
        file.append({name: row[name] for name in REPEATED if name in row} | dict(trace))


def of_cache(cache: Any, tokens: int) -> dict[str, Any]:
    """What each head of row 0 of a freshly compressed cache holds.

    Args:
        cache: of one row, as `kvjax.compress` made it.   tokens: n of the prompt.

    Returns:
        tokens: n.   lengths: slots of each head, [layers][heads].   retention: see there, to three digits.
    """
    share = retention(kept_mask(cache, tokens))
    return {"tokens": tokens, "lengths": cache.lengths[:, 0].tolist(), "retention": np.round(share, 3).tolist()}


def retention(mask: np.ndarray) -> np.ndarray:
    """Share of the heads and tokens of each stretch that are held, float64 [l, s] with s = min(64, n).

        r_lj = mean over h and over floor(jn/s) <= i < floor((j+1)n/s) of mask_lhi

    Args:
        mask: bool [l, h, n].
    """
    tokens = mask.shape[2]
    edges = np.arange(min(STRETCHES, tokens)) * tokens // min(STRETCHES, tokens)
    return np.add.reduceat(mask.mean(1), edges, axis=1) / np.diff(np.append(edges, tokens))


def of_retrieval(cache: Any, policy: Any, row: int = 0) -> dict[str, Any]:
    """How far the focus of each pivot moved while tokens were read (HeteroCache, arXiv 2601.13684, equation 9).

    Args:
        cache: after the last token.   policy: the one it was decoded with.   row: of the batch.

    Returns:
        {} where the policy has no pivots, else {"drift": ...} of
        theta: threshold.   w: queries of a window.   first: number of the first window kept (the state keeps the newest
        `policy.retrieve.traced`).   pivots: [layer, head] each.   medians: median overlap of each window, [pivots][windows], None
        where the window was not judged; below theta the satellites were fetched.   refreshes: fetches that arrived, by pivot.
    """
    if isinstance(cache, kvjax.ShardedCache):  # no retriever keeps a state over devices that share heads
        return {}
    state, refresh = cache.retrieval, policy.retrieve
    if not isinstance(state, PivotState):
        return {}
    windows, kept = int(state.windows[row]), state.trace.shape[-1]
    first = max(0, windows - kept)
    medians = np.asarray(state.trace[row])[:, np.arange(first, windows) % kept]
    return {
        "drift": {
            "theta": float(refresh.theta),
            "w": refresh.w,
            "first": first,
            "pivots": [[int(layer), int(head)] for layer, head in refresh.clusters.pivots],
            "medians": [[None if np.isnan(x) else round(float(x), 4) for x in line] for line in medians],
            "refreshes": np.asarray(state.refreshes[row]).tolist(),
        }
    }
