"""`kvjax show`: a page with the prompt's tokens shaded by how many heads kept them."""

from pathlib import Path
from typing import Annotated

import typer

import kvjax
from experiments.commands.generate import BudgetText, Chat, PolicySpec, PromptFile, load_and_encode, prompt_text
from experiments.console import Dtype, JsonFile, ModelName, out, working, write_json
from experiments.files import write_atomically
from experiments.full_cache import full_nbytes
from experiments.page import kept_mask, render
from experiments.policies import policy_of


def show(
    model: ModelName,
    policy: PolicySpec,
    page: Annotated[Path, typer.Option("--out", help="The HTML page to write.")],
    budget: BudgetText = None,
    prompt: Annotated[str | None, typer.Option(help="The prompt itself.")] = None,
    prompt_file: PromptFile = None,
    chat: Chat = False,
    dtype: Dtype = "float32",
    json_file: JsonFile = None,
) -> None:
    """Compress a prompt and write a self-contained page of what each layer and head kept."""
    named = policy_of(policy, budget)
    lm, ids = load_and_encode(model, dtype, prompt_text(prompt, prompt_file), chat=chat)
    with working(f"reading {len(ids)} tokens"):
        pre = kvjax.second_pass(lm, kvjax.prefill(lm, ids, needs=named.policy), named.policy)
        cache = kvjax.compress(pre, named.policy)
        mask = kept_mask(cache, len(ids))
    facts = {
        "model": f"{lm.name} ({dtype})",
        "policy": named.name,
        "policy_repr": named.policy.in_full(),
        "budget": named.budget,
        "prompt_tokens": len(ids),
        "kept_share": float(mask.mean()),
        "allocated_bytes": cache.nbytes + cache.host_nbytes,
        "full_bytes": full_nbytes(lm, len(ids)),
    }
    write_atomically(page, render([lm.decode([token]) for token in ids], mask, facts).encode())
    out.print(f"wrote {page}", markup=False)
    positions = [[[int(i) for i in head.nonzero()[0]] for head in layer] for layer in mask]
    write_json(json_file, facts | {"page": str(page), "kept": positions})
