"""`kvjax show`: a page of what policies keep of a prompt: heads, the prompt from left to right, its tokens."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from experiments.commands.generate import Chat, PromptFile, load_and_encode, prompt_text
from experiments.console import Dtype, JsonFile, ModelName, out, working, write_json
from experiments.files import write_atomically
from experiments.full_cache import full_nbytes, half_nbytes
from experiments.kept.held import MOST, Held, hold, policies_of
from experiments.kept.page import render
from experiments.pages.charts import library
from experiments.token_text import pieces

Policies = Annotated[
    list[str], typer.Option("--policy", help=f"NAME[:key=value,...], such as snapkv:window=32; up to {MOST}, shown side by side.")
]
Budgets = Annotated[
    list[str] | None, typer.Option("--budget", help="256 slots per KV head, or 0.5 of the prompt; one for all policies or each.")
]


def show(
    model: ModelName,
    policy: Policies,
    page: Annotated[Path, typer.Option("--out", help="The HTML page to write.")],
    budget: Budgets = None,
    prompt: Annotated[str | None, typer.Option(help="The prompt itself.")] = None,
    prompt_file: PromptFile = None,
    chat: Chat = False,
    dtype: Dtype = "float32",
    json_file: JsonFile = None,
) -> None:
    """Compress a prompt and write a self-contained page of what each layer and head kept; two policies beside each other."""
    named = policies_of(policy, budget or ())
    library()  # what is missing is said before the model is loaded
    lm, ids = load_and_encode(model, dtype, prompt_text(prompt, prompt_file), chat=chat)
    with working(f"reading {len(ids)} tokens"):
        found = hold(lm, ids, named)
    full, words = full_nbytes(lm, len(ids)), list(pieces(lm, ids))
    said = {"model": f"{lm.name} ({dtype})", "full": full, "half": half_nbytes({"full_bytes": full, "dtype": dtype})}
    typed = {"--model": model, "--prompt": prompt, "--prompt-file": prompt_file, "--dtype": dtype, "--out": page}
    write_atomically(page, render(found, words, command=_command(typed, policy, budget or (), chat), **said).encode())
    out.print(f"wrote {page}", markup=False)
    facts = {"model": said["model"], "prompt_tokens": len(ids), "full_bytes": full, "page": str(page)}
    write_json(json_file, facts | {"policies": [_facts(held) for held in found]})


def _facts(held: Held) -> dict[str, object]:
    """For machines: numbers, and the positions that each head of each layer holds."""
    return {
        "policy": held.policy, "policy_repr": held.policy_repr, "budget": held.budget, "kept_share": held.share,
        "allocated_bytes": held.device, "host_bytes": held.host, "table_bytes": held.tables,
        "kept": [[[int(i) for i in head.nonzero()[0]] for head in layer] for layer in held.mask],
    }  # fmt: skip


def _command(typed: dict[str, object], policies: Sequence[str], budgets: Sequence[str], chat: bool) -> str:
    """The command line again, without options that were not given a value."""
    words = [word for option, value in typed.items() if value is not None for word in (option, str(value))]
    words += [word for spec in policies for word in ("--policy", spec)]
    words += [word for budget in budgets for word in ("--budget", budget)]
    return shlex.join(["kvjax", "show", *words, *(["--chat"] if chat else [])])
