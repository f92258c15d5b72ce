"""One recorded run of eviction while decoding against kvjax: logits after each token and what is held at the end."""

import numpy as np

from kvjax.policy import Policy
from kvjax.prefill.run import Prefilled
from tests.golden.check_model import DECODE_LOGITS, first_row, rows_of
from tests.golden.folder import Cell
from tests.golden.policies import press_of
from tests.golden.replay import Replay, replay
from tests.golden.result import Result, judged, within


def check_decoding_cell(name: str, lm, pre: Prefilled, *, cell: Cell, policy: Policy) -> Result:
    """Feed the recorded tokens and compare, up to where the record stops being reproducible.

    A row whose scores tied at a cut may go on differently from there. The recorded streaming press ranks slots, whose
    order is arbitrary after its first cut, so its second cut is not comparable.
    """
    run = replay(lm, pre, policy, rows_of(cell.arrays["decode_ids"]))
    if press_of(cell)[0] == "StreamingLLMPress":
        limit = np.minimum(run.tied, 2 * int(policy.when.k))
        return judged(name, cell.label, [_logits(run, cell.arrays["decode_logits"], limit, "slots ranked")])
    kept = _kept(run, cell.arrays["kept_positions"])
    return judged(name, cell.label, [kept, _logits(run, cell.arrays["decode_logits"], run.tied, "tie")])


def _logits(run: Replay, recorded: np.ndarray, limit: np.ndarray, why: str) -> tuple[bool, str]:
    """All steps of the recorded rows, or those before `limit` if the later ones differ."""
    steps, rows = recorded.shape[1], len(recorded)
    whole = within(f"logits of {steps} steps", first_row(run.logits, recorded), DECODE_LOGITS)
    shared = min(steps, int(limit[:rows].min()))
    if whole[0] or shared == steps:
        return whole
    worst = first_row(run.logits[:, :shared], recorded[:, :shared])
    ok, detail = within(f"logits of {shared} steps", worst, DECODE_LOGITS)
    return ok, f"{detail} ({why} at step {shared} of {steps})"


def _kept(run: Replay, recorded: np.ndarray) -> tuple[bool, str]:
    """Positions at the end, in the recorder's numbers or in true ones; a row that met a tie may differ."""
    wrong, excused = [], 0
    for layer, row, head in np.ndindex(recorded.shape[:3]):
        ours, theirs = run.cache.kept(layer)[row][head], recorded[layer, row, head]
        if np.array_equal(ours, theirs) or np.array_equal(run.labels[layer, row, ours], theirs):
            continue
        if run.tied[row] <= run.logits.shape[1]:
            excused += 1
        else:
            wrong.append((layer, row, head))
    heads = recorded[..., 0].size
    detail = f"held at the end: {len(wrong)} of {heads} heads wrong" + (f", first {wrong[0]}" if wrong else "")
    return not wrong, detail + (f", {excused} after a tie" if excused else "")
