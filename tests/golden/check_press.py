"""One recorded compression against kvjax: kept sets, then decode logits on what was kept."""

import jax.numpy as jnp
import numpy as np

import kvjax
from kvjax.policy import Policy
from kvjax.prefill.run import Prefilled
from tests.golden.check_decoding import check_decoding_cell
from tests.golden.check_model import DECODE_LOGITS, KEYS, first_row, rows_of, worst
from tests.golden.folder import Cell
from tests.golden.margin import decided
from tests.golden.policies import CHANNELS, HEAD_WISE, WHILE_DECODING, press_of, safe_entries
from tests.golden.result import Result, judged, within


def check_cell(name: str, lm, pre: Prefilled, *, cell: Cell, policy: Policy) -> Result:
    """Compress the prefilled prompts as the cell did and compare what it recorded."""
    if press_of(cell)[1] == WHILE_DECODING:
        return check_decoding_cell(name, lm, pre, cell=cell, policy=policy)
    if press_of(cell)[0] == CHANNELS:
        return judged(name, cell.label, _channels(lm, pre, cell, policy))
    return judged(name, cell.label, _after_prefill(lm, pre, cell, policy))


def _channels(lm, pre: Prefilled, cell: Cell, policy: Policy) -> list[tuple[bool, str]]:
    """The channels that keys keep, and the logits of the recorded tokens."""
    ids, keep = rows_of(cell.arrays["decode_ids"]), cell.arrays["key_channel_keep"]
    cache = kvjax.compress(pre, policy, headroom=len(ids[0]))
    wrong = int((np.asarray(cache.parts[1].fitted[0]) != keep).sum())
    fed = kvjax.extend(lm, cache, ids, policy, return_logits=True)
    kept = (wrong == 0, f"kept {keep.sum()} channels: {wrong} wrong")
    return [kept, within("decode logits", first_row(fed.logits, cell.arrays["decode_logits"]), DECODE_LOGITS)]


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
    cache = kvjax.compress(pre, policy, headroom=len(ids[0]))
    ours, sure = kept_mask(cache, keep.shape[-1]), _decided(cell)
    differing = ours != keep
    wrong = int((differing & sure).sum())
    undecided = int((~sure).sum())
    where = f", first at (layer, row, head, position) {np.argwhere(differing & sure)[0].tolist()}" if wrong else ""
    kept = (wrong == 0, f"kept {keep.sum()}: {wrong} wrong{where}" + (f", {undecided} tied" if undecided else ""))
    turned = [_turned_keys(lm, cache, cell.arrays["rerotated_keys"])] if "rerotated_keys" in cell.arrays else []
    if differing.any():
        return [kept] if wrong else [kept, (True, "decode logits not comparable: a tie fell the other way")]
    fed = kvjax.extend(lm, cache, ids, policy, return_logits=True)
    return [kept, *turned, within("decode logits", first_row(fed.logits, cell.arrays["decode_logits"]), DECODE_LOGITS)]


def _turned_keys(lm, cache, recorded: np.ndarray) -> tuple[bool, str]:
    """Row 0's stored keys, turned to their ranks in the cache, beside those recorded [l, 1, h, n, d]."""
    rope, n, found = lm.decoder.rope, recorded.shape[3], np.full(recorded.shape, np.nan)
    ranks = jnp.arange(n, dtype=jnp.int32)
    for layer, head in np.ndindex(recorded.shape[0], recorded.shape[2]):
        first, held = int(cache.start[layer, 0, head]), int(cache.length[layer, 0, head])
        if held == n:
            found[layer, 0, head] = rope.rotate(cache.k[first : first + n], *rope.cos_sin(ranks))
    return within("re-rotated keys", worst(found, recorded), KEYS)


def _decided(cell: Cell) -> np.ndarray:
    keep, head_wise = cell.arrays["keep"], press_of(cell)[1] in HEAD_WISE
    safe = safe_entries(cell, keep.shape[-1]) if head_wise else 0
    return decided(keep, cell.arrays.get("scores"), cell.margin, shared=head_wise, safe=safe)
