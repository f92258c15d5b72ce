"""Pack: the slots that stay, written into a pool of just their size, layer by layer."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32, PyTree

from kvjax.compress.decision import Decision
from kvjax.compress.layer_rows import layer_rows
from kvjax.compress.pools import Pools
from kvjax.encode.tail import Tail
from kvjax.policy import Policy
from kvjax.prefill.prefilled import Prefilled


def pack(
    pre: Prefilled, policy: Policy, decided: Sequence[Decision], start: Int32[np.ndarray, "l b h"], slots: int, *,
    numbered: bool = True,
) -> dict[str, PyTree]:  # fmt: skip
    """Fields of a cache: its pools with every slot that stays in its place, and what is kept beside them, leaves [L, B, ...].

    Args:
        decided: what stays of each row.   start: where each region begins.   slots: of a pool.
        numbered: whether positions are stored.

    Returns:
        k, v, pos and state; memory (the merger's), fitted (what codecs were fitted to), tails (exact slots beside coded ones).
    """
    pools, beside, sinks = Pools.empty(pre, policy, slots, numbered=numbered), [], policy.encode.sinks
    for layer, of_model in enumerate(pre.layers):  # in the order of the regions: a block may run into the next one
        for r, (row, decision) in enumerate(zip(pre.rows, decided, strict=True)):
            rows = layer_rows(row, decision, policy, pre.decoder, layer, of_model=of_model)
            pools = pools.written(rows, start[layer, r][None])
            beside.append((rows.memory, (rows.k.fitted, rows.v.fitted), rows.tails(sinks)))

    def by_layer(*of_rows: Array) -> Array:
        return jnp.concatenate(of_rows).reshape(len(pre.layers), len(pre.rows), *of_rows[0].shape[1:])

    memory, fitted, tails = jax.tree.map(by_layer, *beside)
    tails = tuple(tail and Tail(*tail, sinks) for tail in tails)
    return pools.given() | {"memory": memory, "fitted": fitted, "tails": tails}
