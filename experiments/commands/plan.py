"""`kvjax bench plan`: what a model, a length and a policy take of a card's memory, before any of it is allocated."""

from typing import Annotated, Any

import typer

from experiments.console import Dtype, JsonFile, out, write_json
from experiments.policies import policy_of
from models.numbers import MOST


def plan(
    length: Annotated[int, typer.Option(min=1, max=MOST, help="Tokens of the prompt.")],
    model: Annotated[str, typer.Option(help="llama3-8b, llama3-70b, mistral-7b, qwen3-8b, or as elsewhere.")] = "llama3-8b",
    policy: Annotated[str, typer.Option(help="NAME[:key=value,...].")] = "full",
    budget: Annotated[str | None, typer.Option(help="512 slots per KV head, or 0.1 of the prompt.")] = None,
    card: Annotated[float, typer.Option(min=0, max=1e6, help="GiB of device memory.")] = 80.0,
    new: Annotated[int, typer.Option(min=1, max=MOST, help="Tokens decoded after the prompt.")] = 256,
    groups: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST,
            help="Keys as codes of so many groups (hcattention's g); default: the policy's own codebooks, or, where the built-in "
            "ones are for another model, the finest codes that fit the card.",
        ),
    ] = None,
    centroids: Annotated[int, typer.Option(min=1, max=MOST, help="Centroids of codebooks that are planned.")] = 8192,
    dtype: Dtype = "bfloat16",
    json_file: JsonFile = None,
) -> None:
    """Memory of a model, a length, a policy and a card: bytes by part, and whether they fit."""
    from experiments.bench.model_shapes import decoder_of
    from experiments.bench.plan import coded, fits_books, plan_finest
    from experiments.bench.plan import plan as bench

    decoder, named = decoder_of(model), policy_of(policy, budget)
    how = dict(length=length, new=new, dtype=dtype, card=card)
    if groups is None and "artefact=" not in policy and not fits_books(named.policy, decoder):
        groups, found = plan_finest(decoder, named.policy, centroids=centroids, **how)
    else:
        chosen = named.policy if groups is None else coded(named.policy, decoder, groups=groups, centroids=centroids)
        found = bench(decoder, chosen, **how)
    codes = "" if groups is None else f", keys as {groups} codes of {centroids} (codebooks yet to be fitted)"
    shape = f"{model}, {length} tokens and {new} new, {named.name} at {named.budget:g}{codes}"
    result = {"bench": "plan", "shape": shape, "dtype": dtype, "card_gib": card, **found}
    _show(result)
    write_json(json_file, result)


def _show(found: dict[str, Any]) -> None:
    """Every part on a line of its own, then whether it fits."""

    def gib(x: int) -> str:
        return f"{x:>19,} B {x / 2**30:9.2f} GiB"

    out.print(f"plan: {found['shape']}; {found['dtype']}", markup=False)
    for home in ("device", "host"):
        for name, value in found[home].items():
            out.print(f"  {home:6}  {name:22} {gib(value)}", markup=False)
        out.print(f"  {home:6}  {'in all':22} {gib(sum(found[home].values()))}", markup=False)
    out.print(f"  the dense prompt while it is read {gib(found['prefill'])}", markup=False)
    for name, value in found["streamed"].items():
        out.print(f"  streamed prefill  {name:22} {gib(value)}", markup=False)
    for name, value in found["fits"].items():
        out.print(f"  {name} fits a card of {found['card_gib']:g} GiB: {'yes' if value else 'no'}", markup=False)
