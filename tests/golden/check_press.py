"""One recorded compression against kvjax: kept sets, then decode logits on what was kept."""

import numpy as np

import kvjax
from kvjax.policy import Policy
from kvjax.prefill import Prefilled
from tests.golden.check_model import DECODE_LOGITS, first_row, rows_of
from tests.golden.folder import Cell
from tests.golden.margin import decided
from tests.golden.policies import HEAD_WISE, WHILE_DECODING, press_of, safe_entries
from tests.golden.result import Result, judged, within


def check_cell(name: str, lm, pre: Prefilled, *, cell: Cell, policy: Policy) -> Result:
    """Compress the prefilled prompts as the cell did and compare what it recorded."""
    check = _while_decoding if press_of(cell)[1] == WHILE_DECODING else _after_prefill
    return judged(name, cell.label, check(lm, pre, cell, policy))


def kept_mask(cache, length: int) -> np.ndarray:
    """Which positions a cache holds: bool [l, b, h, n]."""
    mask = np.zeros((*cache.lengths.shape, length), bool)
    for layer in range(mask.shape[0]):
        for row, heads in enumerate(cache.kept(layer)):
            for head, positions in enumerate(heads):
                mask[layer, row, head, positions] = True
    return mask


def _after_prefill(lm, pre: Prefilled, cell: Cell, policy: Policy) -> list[tuple[bool, str]]:
    ids, keep = rows_of(cell.arrays["decode_ids"]), cell.arrays["keep"]
    cache = kvjax.compress(pre, policy, room=len(ids[0]))
    ours, sure = kept_mask(cache, keep.shape[-1]), _decided(cell)
    differing = ours != keep
    wrong = int((differing & sure).sum())
    undecided = int((~sure).sum())
    where = f", first at (layer, row, head, position) {np.argwhere(differing & sure)[0].tolist()}" if wrong else ""
    kept = (wrong == 0, f"kept {keep.sum()}: {wrong} wrong{where}" + (f", {undecided} tied" if undecided else ""))
    if differing.any():
        return [kept] if wrong else [kept, (True, "decode logits not comparable: a tie fell the other way")]
    fed = kvjax.extend(lm, cache, ids, policy, return_logits=True)
    return [kept, within("decode logits", first_row(fed.logits, cell.arrays["decode_logits"]), DECODE_LOGITS)]


def _decided(cell: Cell) -> np.ndarray:
    keep, head_wise = cell.arrays["keep"], press_of(cell)[1] == HEAD_WISE
    safe = safe_entries(cell, keep.shape[-1]) if head_wise else 0
    return decided(keep, cell.arrays.get("scores"), cell.margin, shared=head_wise, safe=safe)


def _while_decoding(lm, pre: Prefilled, cell: Cell, policy: Policy) -> list[tuple[bool, str]]:
    """Token by token, as recorded.

    The recorded streaming press ranks slots, whose order is arbitrary after its first cut, so it is compared up to its
    second cut only.
    """
    ids, logits = rows_of(cell.arrays["decode_ids"]), []
    cache = kvjax.compress(pre, policy, room=len(ids[0]))
    for step in range(len(ids[0])):
        fed = kvjax.extend(lm, cache, [row[step : step + 1] for row in ids], policy, return_logits=True)
        cache = fed.cache
        logits.append(np.asarray(fed.logits))
    steps = _comparable_steps(cell, len(ids[0]), int(policy.when.k))
    ours, theirs = np.concatenate(logits, axis=1)[:, :steps], cell.arrays["decode_logits"][:, :steps]
    checks = [within(f"logits of {steps} steps", first_row(ours, theirs), DECODE_LOGITS)]
    if steps < len(ids[0]):
        return [*checks, (True, "later steps rank arbitrary slots")]
    return [_same_positions(cache, cell.arrays["kept_positions"]), *checks]


def _comparable_steps(cell: Cell, steps: int, every: int) -> int:
    return min(steps, 2 * every) if press_of(cell)[0] == "StreamingLLMPress" else steps


def _same_positions(cache, recorded: np.ndarray) -> tuple[bool, str]:
    ours = [cache.kept(layer) for layer in range(recorded.shape[0])]
    wrong = [at for at in np.ndindex(recorded.shape[:3]) if not np.array_equal(ours[at[0]][at[1]][at[2]], recorded[at])]
    return not wrong, f"positions at the end: {len(wrong)} of {recorded[..., 0].size} heads differ" + (
        f", first {wrong[0]}" if wrong else ""
    )
