"""`kvjax simulate`: prefix caching for agents under eviction rules, on a synthetic trace or one from a file."""

import csv
import io
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from experiments.console import JsonFile, Seed, out, write_json
from experiments.files import write_atomically
from experiments.markdown_table import table
from experiments.plan_words import parts
from experiments.policies import policy_of, split_specs
from experiments.prefill_equivalents import hardware_of
from kvjax.checks import brief
from models.numbers import MOST

RULES = "lru,lfu,ttl,steps,kvflow,continuum,oracle"
#: What makes a workload, and says nothing of a trace.
_OF_WORKLOADS = ("workload", "jobs", "every", "seed")


def simulate(
    context: typer.Context,
    trace: Annotated[
        Path | None, typer.Option(help="JSON lines of requests, or a trace of Mooncake's; instead of --workload.")
    ] = None,
    workload: Annotated[
        Literal["workflow", "programs"], typer.Option(help="Agents in stages, or programs that call tools.")
    ] = "workflow",
    jobs: Annotated[int, typer.Option(min=1, max=100_000, help="Jobs of the workload.")] = 32,
    every: Annotated[float, typer.Option(min=0, max=1e6, help="Mean seconds between jobs.")] = 3.0,
    seed: Seed = 0,
    rules: Annotated[str, typer.Option(help=f"Comma-separated: {RULES}.")] = RULES,
    ttl: Annotated[float, typer.Option(min=0, max=1e6, help="Seconds that the rule ttl pins for.")] = 5.0,
    ahead: Annotated[int, typer.Option(min=1, max=1000, help="Steps that kvflow fetches ahead.")] = 2,
    caches: Annotated[str, typer.Option(help="Comma-separated methods that keep all tokens: full,kivi,...")] = "full",
    model: Annotated[str, typer.Option(help="llama3-8b, llama3-70b, mistral-7b, qwen3-8b, or as elsewhere.")] = "llama3-8b",
    hardware: Annotated[Literal["a100", "h100", "h200"], typer.Option(help="The card.")] = "h100",
    device: Annotated[float, typer.Option(min=0, max=1e6, help="GiB of the card for cached tokens.")] = 4.0,
    host: Annotated[float, typer.Option(min=0, max=1e6, help="GiB of host memory for them.")] = 0.0,
    disk: Annotated[float, typer.Option(min=0, max=1e6, help="GiB of a disk for them, read at 5 GB/s.")] = 0.0,
    running: Annotated[int, typer.Option(min=1, max=MOST, help="Requests that run at a time.")] = 8,
    csv_file: Annotated[Path | None, typer.Option("--csv", help="Also write every number to this file.")] = None,
    keep: Annotated[Path | None, typer.Option("--keep-trace", help="Write the trace to this file.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Hits, bytes moved, waiting and completion times of agents whose prompts share prefixes, under each eviction rule."""
    from experiments.bench.model_shapes import decoder_of
    from experiments.serving.prefix_cache import files
    from experiments.serving.prefix_cache.agents import programs, workflow
    from experiments.serving.prefix_cache.study import Memories, study
    from experiments.serving.prefix_cache.study import rules as by_name

    said = {name: context.get_parameter_source(name) for name in _OF_WORKLOADS}
    idle = [f"--{name}" for name, source in said.items() if source is not None and source.name == "COMMANDLINE"]
    if trace is not None and idle:
        raise ValueError(f"{', '.join(idle)}: --trace says what is asked for, and when; leave them out")
    if device <= 0:
        raise ValueError("--device is 0: give the card some memory for cached tokens")
    known = by_name(seconds=ttl, ahead=ahead)
    names = _names(rules, list(known))
    specs = [policy_of(spec, None) for spec in split_specs(caches)]
    make = {"workflow": workflow, "programs": programs}[workload]
    asked = make(jobs=jobs, seed=seed, every=every) if trace is None else files.read(trace)
    if keep is not None:
        files.write(asked, keep)
    memories, makers = Memories(device, host, disk), {name: known[name] for name in names}
    found = study(asked, makers, specs, decoder_of(model), hardware_of(hardware), memories, running=running)
    tiers = [name for name in _TIERS if getattr(memories, name)]
    rows = [
        {"cache": cache, "bytes_per_token": size, "rule": rule, **_flat(asdict(told), tiers)} for cache, size, rule, told in found
    ]
    what = f"{workload}, seed {seed}" if trace is None else str(trace)
    out.print(
        f"{what}: {rows[0]['jobs']} jobs, {rows[0]['requests']} requests, {rows[0]['prompt_tokens']} prompt tokens", markup=False
    )
    out.print(f"{model} on {hardware}; {device:g} GiB of device, {host:g} of host, {disk:g} of disk", markup=False)
    for line in table(_HEADS, [_cells(row) for row in rows], texts=2):
        out.print(line, markup=False)
    if csv_file is not None:
        write_atomically(csv_file, _csv(rows))
    write_json(json_file, {"model": model, "hardware": hardware, "trace": what, "memories": asdict(memories), "rows": rows})


_TIERS = ("device", "host", "disk")
_HEADS = (
    "cache", "rule", "hit rate", "on the device", "host", "disk", "prefilled", "GB up", "waits s", "job mean s", "p50", "p95",
    "PTE", "PTE 16-bit",
)  # fmt: skip


def _names(text: str, known: list[str]) -> list[str]:
    names = parts("--rules", text)
    for name in names:
        if name not in known:
            raise ValueError(f"--rules: {brief(name)} is none of {', '.join(known)}")
        if names.count(name) > 1:
            raise ValueError(f"--rules: {name} is given twice")
    return names


def _flat(told: dict[str, int | float | tuple[int, ...]], tiers: list[str]) -> dict[str, int | float]:
    """Hits by tier as fields of their own; `tiers` are those of the machine, and none were found in one that is not there."""
    hits = told.pop("hit_tokens")
    found = dict.fromkeys(_TIERS, 0) | dict(zip(tiers, hits, strict=True))
    return {
        **told,
        **{f"hit_tokens_{name}": tokens for name, tokens in found.items()},
        "hit_rate": sum(hits) / told["prompt_tokens"],
    }


def _cells(row: dict[str, int | float | str]) -> list[str]:
    share = [f"{row[f'hit_tokens_{tier}'] / row['prompt_tokens']:.3f}" for tier in _TIERS]
    times = [f"{row[name]:.2f}" for name in ("queueing", "completion_mean", "completion_p50", "completion_p95")]
    pte = [f"{row[name]:.4g}" for name in ("pte", "pte_16bit")]
    return [
        row["cache"], row["rule"], f"{row['hit_rate']:.3f}", *share, str(row["recomputed_tokens"]), f"{row['bytes_up'] / 1e9:.1f}",
        *times, *pte,
    ]  # fmt: skip


def _csv(rows: list[dict[str, int | float | str]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()
