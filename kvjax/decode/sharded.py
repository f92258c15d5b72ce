"""Decoding a sharded cache: one program, in which every device runs the ordinary step on the cache that it holds.

Rows need nothing of each other. Where KV heads are divided, devices of a group exchange a token's queries, keys, values and outputs
(`decode/routed.py`) and add up what their parts of the projections give: results are one device's to the order of these sums.
"""

import time
from collections.abc import Iterable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Int32, PyTree

from kvjax.cache.mesh import EACH, HEADS, ROWS, sizes, whole
from kvjax.cache.sharded import ShardedCache
from kvjax.checks import check_key_rows
from kvjax.decode.decoded import Decoded, stop_ids, told
from kvjax.decode.first_run import first_run
from kvjax.decode.routed import Routed, with_routes
from kvjax.decode.sharded_room import check_sharded, make_sharded_room
from kvjax.decode.step import Spec, run_block
from kvjax.decode.token_loop import token_loop
from kvjax.policy import Policy
from kvjax.types import Logits, power_of_two

#: The same on every device; the rows of a group on each of its devices.
SAME, OF_GROUP = PartitionSpec(), PartitionSpec(ROWS)


@struct.dataclass
class InBatch:
    """A sampler of random tokens that draws for the whole batch, as on one device, and keeps a group's rows.

    Attributes: sampler: `kvjax.Sample`.   order: int32 [B], rows of the batch as the groups hold them.
    """

    sampler: PyTree
    order: PyTree
    random = True

    def __call__(self, logits: Logits, key: Array) -> Int32[Array, " b"]:
        every = lax.all_gather(logits, ROWS, axis=0, tiled=True)
        chosen = self.sampler(every[jnp.argsort(self.order)], key)[self.order]
        rows = logits.shape[0]
        return lax.dynamic_slice_in_dim(chosen, lax.axis_index(ROWS) * rows, rows)


def decode(
    lm, cache: ShardedCache, policy: Policy, new: int, *, keep_logits: bool, sampler: PyTree, key: Array, stop: Array,
    pool_budget: int | float | None,
) -> Decoded:  # fmt: skip
    """`kvjax.decode` of a sharded cache, its arguments checked and resolved."""
    specs = check_sharded(lm, cache, policy, new)
    check_key_rows(key, sum(map(len, cache.order)))
    roomy, padded_slots = make_sharded_room(cache, policy, new, pool_budget=pool_budget)
    if sampler.random:
        sampler = InBatch(sampler=sampler, order=jnp.asarray(np.concatenate(cache.order), jnp.int32))
    spec, sampler, stop = _values((_spec(lm, cache, policy, padded_slots), sampler, stop))
    how = dict(mesh=cache.mesh, form=cache.form, specs=specs, width=power_of_two(new), keep_logits=keep_logits)
    how |= dict(impl=jax.random.key_impl(key))
    data = np.asarray(jax.random.key_data(key))

    def run(leaves, n):
        return _loop_sharded(spec, lm.params, leaves, cache.heads, sampler, data, stop, np.int32(n), **how)

    ready = roomy.leaves
    if first_run(_loop_sharded, spec, lm.params, ready, cache.heads, sampler, data, stop, tuple(how.items())):
        # no step at all: whatever has to be compiled is, and the cache comes back as it was
        ready, *_, steps = jax.block_until_ready(run(ready, 0))
        whole(steps, cache.mesh)
    began = time.perf_counter()
    leaves, tokens, lengths, logits, steps = run(ready, new)
    taken = int(whole(steps, cache.mesh).max())
    seconds = time.perf_counter() - began
    end, in_batch = roomy.with_leaves(leaves), lambda x: _in_batch(x, cache)
    return Decoded(
        tokens=in_batch(tokens)[:, :taken],
        lengths=in_batch(lengths),
        logits=in_batch(logits)[:, :taken] if keep_logits else None,
        cache=end,
        info=told(seconds, taken, end),
        tokenizer=lm.tokenizer,
        stop=stop_ids(stop),
    )


def extend(
    lm, cache: ShardedCache, policy: Policy, blocks: Iterable[tuple[int, np.ndarray, np.ndarray]], *, counts: np.ndarray,
    block: int, keep_logits: bool, pool_budget: int | float | None,
) -> tuple[ShardedCache, np.ndarray | None]:  # fmt: skip
    """`kvjax.extend` of a sharded cache: (the cache, the logits after each token if asked for).

    Args:
        blocks: real width, tokens [B, t] and how many of them are each row's.   counts: tokens of each row.   block: most at once.
    """
    specs = check_sharded(lm, cache, policy, counts, block=block)
    cache, padded_slots = make_sharded_room(cache, policy, int(counts.max()), block=block, pool_budget=pool_budget)
    spec, logits = _values(_spec(lm, cache, policy, padded_slots)), []
    how = dict(mesh=cache.mesh, form=cache.form, specs=specs, keep_logits=keep_logits)
    for width, part, count in blocks:
        rows = cache.by_group(part), cache.by_group(count)
        leaves, out = _read_sharded(spec, lm.params, cache.leaves, cache.heads, *rows, **how)
        cache = cache.with_leaves(leaves)
        if keep_logits:
            logits.append(_in_batch(out, cache)[:, :width])
    return cache, np.concatenate(logits, 1) if keep_logits else None


@partial(jax.jit, static_argnames=("mesh", "form", "specs", "impl", "width", "keep_logits"), donate_argnames=("leaves",))
def _loop_sharded(
    spec, params, leaves, heads, sampler, key, stop, limit, *, mesh, form, specs, impl, width: int, keep_logits: bool
):
    """`token_loop` on every device, until the rows of all groups have stopped."""

    def on_device(spec, params, leaves, heads, sampler, key, stop, limit):
        owned, read = jax.tree.unflatten(form, leaves).split()
        end = token_loop(
            spec, _routes(params, heads, mesh), owned, read, sampler, jax.random.wrap_key_data(key, impl=impl), stop, limit,
            width=width, keep_logits=keep_logits, anyone=_anyone,
        )  # fmt: skip
        return tuple(jax.tree.leaves(end.cache.joined(read))), end.tokens, end.lengths, end.logits, end.i[None]

    where = SAME, _tree(params, specs), EACH, EACH, SAME, SAME, SAME, SAME
    run = jax.shard_map(on_device, mesh=mesh, in_specs=where, out_specs=EACH, check_vma=False)
    return run(spec, params, leaves, heads, sampler, key, stop, limit)


@partial(jax.jit, static_argnames=("mesh", "form", "specs", "keep_logits"), donate_argnames=("leaves",))
def _read_sharded(spec, params, leaves, heads, tokens, count, *, mesh, form, specs, keep_logits: bool):
    """`run_block` on every device."""

    def on_device(spec, params, leaves, heads, tokens, count):
        cache = jax.tree.unflatten(form, leaves)
        cache, every = run_block(spec, _routes(params, heads, mesh), cache, tokens, count, keep_logits=keep_logits)
        return tuple(jax.tree.leaves(cache)), every

    where = SAME, _tree(params, specs), EACH, EACH, OF_GROUP, OF_GROUP
    run = jax.shard_map(on_device, mesh=mesh, in_specs=where, out_specs=EACH, check_vma=False)
    return run(spec, params, leaves, heads, tokens, count)


def _anyone(running: Bool[Array, " b"]) -> Bool[Array, ""]:
    """Whether a row runs on any device: groups leave the loop together."""
    return lax.pmax(running.any().astype(jnp.int32), (ROWS, HEADS)) > 0


def _spec(lm, cache: ShardedCache, policy: Policy, padded_slots: int) -> Spec:
    """What a device's part of decoding is compiled for."""
    devices = sizes(cache.mesh)[1]
    decoder = lm.decoder if devices == 1 else Routed(lm.part, HEADS)
    return Spec.of(decoder, policy, padded_slots)


def _routes(params: PyTree, heads: Int32[Array, "l h"], mesh) -> PyTree:
    """Parameters with the way to the devices that hold heads, where they are divided."""
    return params if sizes(mesh)[1] == 1 else with_routes(params, heads, HEADS)


def _tree(params: PyTree, specs: tuple) -> PyTree:
    """Where each parameter lies, in the structure of the parameters."""
    return jax.tree.unflatten(jax.tree.structure(params), specs)


def _values(tree: PyTree) -> PyTree:
    """Numbers as every process has them: where there are several, not as arrays of one device."""
    if jax.process_count() == 1:
        return tree

    def plain(x):
        return np.asarray(x) if isinstance(x, jax.Array) and not jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x

    return jax.tree.map(plain, tree)


def _in_batch(x: Array, cache: ShardedCache) -> np.ndarray:
    """Rows of all devices [devices · b, ...], those of a group the same on each, in the order of the batch: [B, ...]."""
    groups, devices = sizes(cache.mesh)
    rows = whole(x, cache.mesh).reshape(groups, devices, -1, *x.shape[1:])[:, 0]
    return cache.in_order(rows.reshape(-1, *x.shape[1:]))
