"""Prompts under many policies: a prefill each, a compression a cell, and decoding in batches of cells that decode alike."""

import resource
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import jax

import kvjax
from experiments import traces
from experiments.answer_cost import layer_tokens, of_row
from experiments.full_cache import full_nbytes
from experiments.memory_maps import forget_programs
from experiments.policies import Named
from experiments.prefills import Afresh
from experiments.stored_bits import stored_bits
from experiments.tasks.example import Example, Read
from kvjax.cache.mesh import mesh_of


def measure(
    lm: Any, task: Any, examples: Sequence[Example], cells: Sequence[Named], *, needs: Any, prefills: Any = Afresh(),
    trace: bool = False,
) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:  # fmt: skip
    """(row, trace) for each cell of each prompt; the second is None but for prompt 0 with `trace`.

    Cells whose policies read a prompt alike share one prefill, which records the `needs` of all such policies; a policy that lets
    tokens leave the prompt while it is read reads it alone. Prompts of one task that are decoded alike are rows of one batch, as
    many as it has room for.
    """
    most = task.rows_at_once(lm, examples[0])
    for mine in read_alike(cells):
        reading = mine[0].policy
        wanted = needs
        if not isinstance(needs, set | frozenset):
            wanted = [policy for policy in needs if policy.attention == reading.attention and not policy.select.leaves]
        for some in decoded_together(examples, task, most):
            reads = [_read(lm, example, prefills, needs=wanted, reading=reading) for example in some]
            for group in batches(mine, most, prompts=len(reads)):
                yield from _answered(lm, task, reads, group=group, trace=trace)


def read_alike(cells: Sequence[Named]) -> list[list[Named]]:
    """Cells that share a reading of the prompt."""
    shared: dict[Any, list[Named]] = {}
    for cell in cells:
        if not cell.policy.select.leaves:
            shared.setdefault(cell.policy.attention, []).append(cell)
    return [*shared.values(), *([cell] for cell in cells if cell.policy.select.leaves)]


def decoded_together(examples: Sequence[Example], task: Any, most: int) -> Iterator[list[Example]]:
    """Prompts that are decoded alike, at most so many at a time."""
    for _, found in groupby(sorted(examples, key=lambda example: repr(task.alike(example))), key=task.alike):
        alike = list(found)
        yield from (alike[i : i + most] for i in range(0, len(alike), most))


def _read(lm: Any, example: Example, prefills: Any, *, needs: Any, reading: kvjax.Policy) -> Read:
    """The prompt as `reading` reads it: cut as it is read where tokens leave it, else whole, with the evidence for `needs`."""
    began = time.perf_counter()
    if reading.select.leaves:
        made = kvjax.prefill(lm, list(example.compressed), streaming=reading)
    else:
        made = prefills.of(lm, example.compressed, needs, reading.attention)
    return Read(example, jax.block_until_ready(made), seconds=time.perf_counter() - began)


def with_prefill(row: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The row with the time of the prefill in that to its first token, where it has one."""
    name = "seconds_to_first_token"
    return row | {name: row[name] + seconds} if name in row else row


def batches(cells: Sequence[Named], size: int, *, prompts: int = 1) -> Iterator[list[Named]]:
    """Cells that decode alike, in groups of at most `size` rows and of nearly equal size, since each size is a program.

    A cell is a row for each of `prompts` prompts, at most `size` of them.

    Budgets are data, so the cells of a policy that evicts while decoding share a batch too. Mergers may leave a bias beside
    every slot, so theirs is a pool of its own.
    """

    def alike(cell: Named) -> str:
        return repr((cell.policy.decode_stages(), cell.policy.encode, cell.policy.retrieve, cell.policy.merge))

    most = size // prompts
    for _, found in groupby(sorted(cells, key=alike), key=alike):
        group = list(found)
        step = -(-len(group) // -(-len(group) // most))
        yield from (group[i : i + step] for i in range(0, len(group), step))


def _answered(lm: Any, task: Any, reads: Sequence[Read], *, group: list[Named], trace: bool) -> Iterator[tuple]:
    """(row, trace) of each cell of a group for each prompt, all of them decoded as one batch."""
    pairs, caches, facts, seen = [], [], [], []
    for read in reads:
        for cell, cache, fact in _compressed(lm, read, group):
            pairs.append((read, cell))
            caches.append(cache)
            facts.append(fact)
            length = len(read.example.compressed)
            seen.append(traces.of_cache(cache, length) if trace and read.example.index == 0 else None)
    batch = over_devices(lm, kvjax.stack(caches) if len(caches) > 1 else caches[0])
    began = time.perf_counter()
    found = task.measure(lm, batch, group[0].policy, [read for read, _ in pairs])
    seconds = (time.perf_counter() - began) / len(pairs)
    tokens = tokens_read(found)
    for (read, cell), fact, one, shown in zip(pairs, facts, found, seen, strict=True):
        drift = {"drift": one.pop("drift")} if "drift" in one else {}
        cost = of_row(lm, fact, one.pop("spent")) if "spent" in one else {}
        spent = {"seconds_per_token": seconds / (tokens or read.example.room), "rows": len(pairs), "peak_bytes": peak_bytes()}
        row = with_prefill(fact | one | cost, read.seconds) | spent
        common = _describe(read.example, cell) | {"seconds_prefill": read.seconds}
        yield common | row, None if shown is None else shown | drift


def tokens_read(found: Sequence[dict[str, Any]]) -> int:
    """Tokens that a batch fed and generated one after the other: those of its longest rows; 0 where its rows do not say.

    Answers end before they are as long as they may be, and some are several: rows say so by `spent` or by `read`, which is taken
    from them.
    """
    told = [one["spent"] for one in found if "spent" in one]
    read = max(one.pop("read", 0) for one in found)
    return max(cost.fed for cost in told) + max(cost.generated for cost in told) if told else read


def _compressed(lm: Any, read: Read, group: list[Named]) -> Iterator[tuple[Named, Any, dict[str, Any]]]:
    """(cell, cache, what is known of it) of a prompt; cells of one scorer follow each other, and the first pays for it."""
    scored = None
    for cell in group:
        forget_programs()
        began = time.perf_counter()
        if isinstance(read.pre, kvjax.KVCache):
            cache = read.pre
        else:
            if scored is None or not scored.serves(read.pre, cell.policy):
                scored = kvjax.score_prompt(read.pre, cell.policy)
            cache = jax.block_until_ready(kvjax.compress(read.pre, cell.policy, scores=scored))
        spent = {"seconds_compress": time.perf_counter() - began}
        yield cell, cache, spent | _bytes(lm, len(read.example.compressed), cache, cell.policy) | {"table_bytes": cell.table_bytes}


def over_devices(lm: Any, cache: kvjax.KVCache) -> kvjax.KVCache | kvjax.ShardedCache:
    """The cache where the model's weights are: over their mesh, where they lie on one (`models.shard`)."""
    mesh = mesh_of(lm.params)
    return cache if mesh is None else kvjax.shard(cache, mesh)


def peak_bytes() -> int:
    """Most bytes held so far: of the device where it counts them, else of this process."""
    stats = jax.devices()[0].memory_stats() or {}
    return int(stats.get("peak_bytes_in_use", 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))


def _bytes(lm: Any, length: int, cache: Any, policy: kvjax.Policy) -> dict[str, Any]:
    """What the compressed prompt occupies and what the whole one would, before room for new tokens is added.

    Kept slots are those in the pool; held ones, those elsewhere, too.
    """
    decoder = lm.decoder
    heads = decoder.layers * decoder.heads
    kept = int(cache.lengths.sum())
    left = {"layer_tokens": layer_tokens(cache, length)} if policy.select.leaves else {}
    return left | {
        "prompt_tokens": length,
        "kept_slots": kept,
        "kept_share": kept / (heads * length),
        "held_slots": int(cache.held.sum()),
        "stored_bits": stored_bits(lm, cache, policy),
        "allocated_bytes": cache.nbytes,
        "host_bytes": cache.host_nbytes,
        "full_bytes": full_nbytes(lm, length),
    }


def _describe(example: Example, cell: Named) -> dict[str, Any]:
    return {
        "task": example.task,
        "mode": example.mode,
        "length": example.length,
        "prompt": example.index,
        "policy": cell.name,
        "policy_repr": cell.policy.in_full(),
        "budget": cell.budget,
        **example.meta,
    }
