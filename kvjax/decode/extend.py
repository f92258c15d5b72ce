"""Extend: known tokens fed through a compressed cache, many at a time."""

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import PyTree

from kvjax.cache.kv_cache import KVCache
from kvjax.cache.sharded import ShardedCache, check_unsharded
from kvjax.checks import check_block, check_known, check_language_model
from kvjax.decode import sharded
from kvjax.decode.headroom import check_cache, check_policy, make_room
from kvjax.decode.step import Spec, run_block
from kvjax.policy import Policy
from kvjax.short_repr import one_line, short

#: Tokens that padding may add to a block, all rows together.
PADDING = 512


@struct.dataclass
class Extended:
    """A cache that has read known tokens. logits: float32 [B, t, V], after each token, if asked for."""

    cache: KVCache | ShardedCache
    logits: PyTree = None

    def __repr__(self) -> str:
        """The cache, and the shape of the logits if they were asked for."""
        return one_line("Extended", repr(self.cache), None if self.logits is None else f"logits {short(self.logits)}")


@partial(jax.jit, static_argnames=("keep_logits",), donate_argnames=("cache",))
def _read(spec: Spec, params, cache: KVCache, read, tokens, count, *, keep_logits: bool):
    cache, every = run_block(spec, params, cache.joined(read), tokens, count, keep_logits=keep_logits)
    return cache.split()[0], every


def _width(tokens: int, rows: int, block: int) -> int:
    """`tokens` rounded up so that few programs exist: to a multiple of 64, or of less where many rows would all be padded.

    At most eight widths a power of two.
    """
    unit = max(8, tokens // 8, PADDING // rows)
    unit = min(64, 1 << unit.bit_length() - 1)
    return 1 if tokens == 1 else min(-(-tokens // unit) * unit, max(block, 2))


def _as_table(rows: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Rows of token ids as int32 [B, t], zeros behind the shorter ones, and how many each has."""
    counts = np.array([len(row) for row in rows])
    table = np.zeros((len(rows), int(counts.max())), np.int32)
    for r, row in enumerate(rows):
        table[r, : len(row)] = row
    return table, counts


def _blocks(table: np.ndarray, counts: np.ndarray, block: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Some tokens of every row at a time: how many columns are real, the padded tokens, how many are each row's."""
    for at in range(0, table.shape[1], block):
        part = table[:, at : at + block]
        width = _width(part.shape[1], len(table), block)
        count = np.clip(counts - at, 0, part.shape[1]).astype(np.int32)
        yield part.shape[1], np.pad(part, ((0, 0), (0, width - part.shape[1]))), count


def _checked(lm, cache: object, policy: object, block: object) -> int:
    """The block; raise TypeError where the others are not a language model, a cache and a policy, in this order."""
    check_language_model(lm)
    check_policy(policy)
    if not isinstance(cache, ShardedCache):
        check_unsharded(cache)
    return check_block(block)


def extend(
    lm, cache: KVCache | ShardedCache, ids: object, policy: Policy, *, return_logits: bool = False, block: int = 512,
    pool_budget: int | float | None = None,
) -> Extended:  # fmt: skip
    """Feed known tokens (a question, a continuation) through a compressed cache, many at a time.

    Each token attends to all that is held and to those before it. A policy that evicts while decoding evicts after each block: feed
    one token at a time (`block=1`) for its exact schedule. A row beside others is what it is alone up to rounding, not to the bit.

    Args:
        ids: token ids, or a list of rows of them, one for each row of the cache; rows may differ in length.
        return_logits: keep the logits after each token, float32 [B, t, V].
        block: most tokens run at once (padded to a size class).
        pool_budget: a budget whose size class the pool gets at least, as in `compress`.

    Raises:
        TypeError, ValueError: a cache, policy or rows that do not fit, no token ids, a context overrun, a block below 1.
    """
    block = _checked(lm, cache, policy, block)
    rows, has = check_known(ids, lm.decoder.vocab), cache.shape[1] if isinstance(cache, ShardedCache) else cache.position.shape[0]
    if len(rows) != has:
        raise ValueError(f"the cache has {has} rows; got tokens for {len(rows)}")
    table, counts = _as_table(rows)
    if not table.size:
        return Extended(cache=cache, logits=jnp.zeros((*table.shape, lm.decoder.vocab), jnp.float32) if return_logits else None)
    block = 1 if policy.retrieve.stepwise or policy.encode.stepwise else block
    step, blocks = min(block, table.shape[1]), _blocks(table, counts, block)
    if isinstance(cache, ShardedCache):
        how = dict(counts=counts, block=step, keep_logits=return_logits, pool_budget=pool_budget)
        return Extended(*sharded.extend(lm, cache, policy, blocks, **how))
    check_cache(lm, cache, policy, counts, block=step)
    cache, padded_slots = make_room(cache, policy, table.shape[1], block=step, pool_budget=pool_budget)
    (cache, read), logits = cache.split(), []
    for width, tokens, count in blocks:
        spec = Spec.of(lm.decoder, policy, padded_slots)
        new, out = _read(spec, lm.params, cache, read, tokens, count, keep_logits=return_logits)
        cache = new.adopted(cache)
        if return_logits:
            logits.append(out[:, :width])
    return Extended(cache=cache.joined(read), logits=jnp.concatenate(logits, 1) if return_logits else None)
