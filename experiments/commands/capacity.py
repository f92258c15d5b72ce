"""`kvjax bench capacity`: how many requests of a length a card serves at a time under each policy."""

from typing import Annotated

import typer

from experiments.console import Dtype, JsonFile, err, out, write_json
from experiments.markdown_table import table
from experiments.plan_words import grid, parse_lengths
from models.numbers import MOST


def capacity(
    lengths: Annotated[str, typer.Option(help="Comma-separated prompt lengths in tokens.")] = "8192,32768",
    policies: Annotated[str, typer.Option(help="Comma-separated NAME[:key=value,...].")] = "full,kivi,snapkv,adakv,h2o",
    budgets: Annotated[str, typer.Option(help="Comma-separated: 512 slots per KV head, or 0.25 of the prompt.")] = "0.25",
    model: Annotated[str, typer.Option(help="llama3-8b, llama3-70b, mistral-7b, qwen3-8b, or as elsewhere.")] = "llama3-8b",
    card: Annotated[float, typer.Option(min=0, max=1e6, help="GiB of device memory.")] = 80.0,
    new: Annotated[int, typer.Option(min=1, max=MOST, help="Tokens generated after each prompt.")] = 256,
    dtype: Dtype = "bfloat16",
    json_file: JsonFile = None,
) -> None:
    """Concurrent requests at a length on a card's memory, with the bytes that decide it."""
    from experiments.bench.model_shapes import decoder_of
    from experiments.serving.capacity import capacity as of

    decoder, rows = decoder_of(model), []
    for length in parse_lengths(lengths):
        for cell in grid(policies, budgets):
            with err.status(f"{cell.name} at {length}"):
                found = of(decoder, cell.policy, length=length, new=new, dtype=dtype, card=card)
            sizes = {"cache": found.cache(1), "host": found.host_cache(1), "step": found.step}
            sizes |= {"prefill": found.prefill, "fixed": found.fixed, "needed": found.needed(found.requests)}
            rows.append({"length": length, "policy": cell.name, "budget": cell.budget, "requests": found.requests, **sizes})
    out.print(f"{model}, {dtype}, a card of {card:g} GiB, {new} new tokens; MiB of one request, then of all", markup=False)
    heads = ("policy", "budget", "length", "requests", "cache", "on the host", "step", "a dense prompt", "held once", "in all")
    sizes = ("cache", "host", "step", "prefill", "fixed", "needed")
    lines = [
        [row["policy"], f"{row['budget']:g}", str(row["length"]), str(row["requests"]), *(f"{row[x] / 2**20:.1f}" for x in sizes)]
        for row in rows
    ]
    for line in table(heads, lines, texts=1):
        out.print(line, markup=False)
    write_json(json_file, {"bench": "capacity", "model": model, "dtype": dtype, "card_gib": card, "new": new, "rows": rows})
