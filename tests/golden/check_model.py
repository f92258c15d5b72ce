"""A model against its reference: prefill logits, keys and values, and greedy decoding on the full cache."""

import numpy as np

import kvjax
from kvjax.prefill.run import Prefilled
from tests.golden.result import Result, judged, within

PREFILL_LOGITS, KEYS, DECODE_LOGITS = 2e-4, 1e-4, 5e-4


def rows_of(ids: np.ndarray) -> list[list[int]]:
    """An array of ids → rows of ints."""
    return [[int(i) for i in row] for row in ids]


def worst(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest absolute difference; NaN if shapes differ or a value is NaN."""
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    return float(np.abs(ours - theirs).max()) if ours.shape == theirs.shape else float("nan")


def check_prefill(name: str, pre: Prefilled, ref: dict) -> list[Result]:
    """Prefill logits of every position, and keys and values of every layer."""
    n = ref["input_ids"].shape[1]
    logits = np.stack([np.asarray(row.all_logits)[:n] for row in pre.rows])
    keys, values = (_dense(pre, side, n) for side in ("k", "v"))
    checks = [within("keys", worst(keys, ref["keys"]), KEYS), within("values", worst(values, ref["values"]), KEYS)]
    return [
        judged(name, "prefill logits", [within("logits", worst(logits, ref["logits"]), PREFILL_LOGITS)]),
        judged(name, "prefill keys and values", checks),
    ]


def _dense(pre: Prefilled, side: str, n: int) -> np.ndarray:
    """Keys or values as recorded: [l, b, h, n, d]."""
    rows = [np.stack([np.asarray(layer)[0, :, :n] for layer in getattr(row, side)]) for row in pre.rows]
    return np.stack(rows, axis=1)


def check_decode(name: str, lm, pre: Prefilled, ref: dict) -> Result:
    """The recorded greedy tokens fed to the full cache; logits of row 0."""
    policy = kvjax.methods.full()
    steps = ref["greedy_ids"].shape[1]
    cache = kvjax.compress(pre, policy, headroom=steps)
    fed = kvjax.extend(lm, cache, rows_of(ref["greedy_ids"]), policy, return_logits=True)
    checks = [within("logits", first_row(fed.logits, ref["greedy_logits"]), DECODE_LOGITS)]
    return judged(name, f"decode, full cache, {steps} steps", checks)


def first_row(logits, recorded: np.ndarray) -> float:
    """The largest difference over the rows recorded (the first ones)."""
    return worst(np.asarray(logits)[: len(recorded)], recorded)
