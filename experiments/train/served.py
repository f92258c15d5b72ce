"""Whether learned weights are worth serving: nats per token of held-out text behind a prompt that was cut.

    python -m experiments.train.served --model smollm2-135m --gate FOLDER --budget 64 --json FILE

The prompts are cut once, after they are read, whatever the method does later; the continuation is then fed as it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer

import kvjax
from experiments.calibrate.text import stretches
from experiments.console import JsonFile, ModelName, Seed, out, write_json
from experiments.stats import Estimate, average
from experiments.tasks.chat import encode_plain
from experiments.tasks.text import haystack
from experiments.text_splits import splits
from experiments.train import find
from experiments.train.retrieval_heads import agreement, as_many, scores_for
from kvjax.allocate import AcrossModel, AllHeld
from kvjax.artefacts.artefact import Artefact, load
from kvjax.artefacts.weights import tables_of
from kvjax.select import TopK

#: First and last tokens that stay where a gate's own rule is put aside for a budget; the first as in `streaming_llm`.
SINKS, RECENT = 4, 16


def nats(lm: Any, policies: Mapping[str, kvjax.Policy], texts: Sequence[Sequence[int]], *, prompt: int) -> dict[str, list[float]]:
    """Nats per token of each text's tokens from `prompt` + 1 on, by policy: the first is predicted by the uncut prompt."""
    once = {name: policy.replace(when=kvjax.AfterPrefill()) for name, policy in policies.items()}
    pre = kvjax.prefill(lm, [list(ids[:prompt]) for ids in texts], needs=list(once.values()))
    rest = [list(ids[prompt:]) for ids in texts]
    found = {}
    for name, policy in once.items():
        read = kvjax.second_pass(lm, pre, policy)
        logits = kvjax.extend(lm, kvjax.compress(read, policy), rest, policy, return_logits=True).logits
        log_p = jax.nn.log_softmax(logits[:, : len(rest[0]) - 1])
        said = np.take_along_axis(np.asarray(log_p), np.array(rest)[:, 1:, None], -1)[..., 0]
        found[name] = [float(-x) for x in said.mean(1)]
    return found


def rivals(artefact: Artefact, lm: Any, budget: int, seed: int) -> dict[str, kvjax.Policy]:
    """The policy of an artefact, that of the weights it began with, and what needs no learning.

    All are beside `streaming_llm` and `snapkv`; KVzap beside KVzip, which it is taught by; heads that are told apart beside as many
    drawn at random, and beside those of CompressKV's highest scores where its artefact is built in.
    """
    methods, settings = kvjax.methods, artefact.settings
    plain = {name: getattr(methods, name)(budget=budget) for name in ("streaming_llm", "snapkv")}
    plain |= {"kvzip": methods.kvzip(budget=budget)} if artefact.method == "kvzap" else {}
    plain = {"full": methods.full(), **plain}
    if artefact.method == "dmc":
        raise ValueError("dmc changes the model itself: compare it with the retrofitted model (kvjax.artefacts.retrofitted)")
    if artefact.method != "duo_attention":
        return plain | _gates(artefact, lm, budget)
    sizes = dict(sinks=settings["sinks"], recent=settings["recent"])
    draw = np.random.default_rng(seed)
    flags = np.asarray(methods.duo_attention(artefact=artefact).allocate.pattern)
    shuffled = {f"shuffled {i}": draw.permutation(flags.ravel()).reshape(flags.shape) for i in range(3)}
    first = np.arange(flags.size).reshape(flags.shape) < flags.sum()
    scores = scores_for(str(artefact.model["name"]))
    known = {} if scores is None else {"compresskv's heads": as_many(scores, flags)}
    patterns = {"learned": flags, "untrained": first, **known, **shuffled}
    return plain | {name: methods.duo_attention(pattern, **sizes) for name, pattern in patterns.items()}


def _gates(artefact: Artefact, lm: Any, budget: int) -> dict[str, kvjax.Policy]:
    from kvjax.train import untrained

    kind = type(find(artefact.method).learner(find(artefact.method).DEFAULTS, None))
    learner = kind(**{field.name: artefact.settings[field.name] for field in fields(kind)})
    start = replace(artefact, tables=tables_of(untrained(lm, learner, artefact.settings["seed"])))
    build = getattr(kvjax.methods, artefact.method)
    both = {"learned": build(artefact=artefact), "untrained": build(artefact=start)}
    return {name: at_budget(policy, budget) for name, policy in both.items()}


def at_budget(policy: kvjax.Policy, budget: int) -> kvjax.Policy:
    """The policy with heads of `budget` slots on average; where a gate says how many stay, the best of all heads stay instead."""
    if isinstance(policy.allocate, AllHeld):
        policy = policy.replace(allocate=AcrossModel(), select=TopK(sinks=SINKS, recent=RECENT))
    return policy.replace(budget=budget)


def learned_less(found: Mapping[str, Sequence[float]]) -> dict[str, Estimate]:
    """What the learned policy loses more than each other on the same texts: below 0 where it is better, with a 95% interval."""
    others = {name: values for name, values in found.items() if name != "learned"}
    return {
        name: average([mine - other for mine, other in zip(found["learned"], values, strict=True)])
        for name, values in others.items()
    }


def main(
    model: ModelName,
    gate: Annotated[Path, typer.Option("--gate", help="Folder of an artefact that `kvjax train` made.")],
    budget: Annotated[int, typer.Option(min=1, help="Slots per KV head, where the method takes a budget.")] = 64,
    samples: Annotated[int, typer.Option(min=1, help="Texts of each kind.")] = 12,
    prompt: Annotated[int, typer.Option(min=2, help="Tokens that are cut.")] = 256,
    new: Annotated[int, typer.Option(min=2, help="Tokens behind them.")] = 64,
    seed: Seed = 0,
    json_file: JsonFile = None,
) -> None:
    """Held-out documentation, and the essays that tasks are made of."""
    import models

    lm = models.load(model, dtype="float32")
    artefact = load(gate, lm=lm)
    policies = rivals(artefact, lm, budget, seed)
    said: dict[str, Any] = {"artefact": artefact.origin, "budget": budget, "prompt": prompt, "new": new, "samples": samples}
    scores = scores_for(Path(lm.name).name)
    if artefact.method == "duo_attention" and scores is not None:
        said["retrieval_heads"] = agreement(artefact.tables["alpha"], scores)
        out.print(f"alpha and compresskv's scores of heads: {said['retrieval_heads']}", markup=False)
    for name, text in {"held-out": splits()["held-out"].text, "essays": haystack().text}.items():
        found = nats(lm, policies, stretches(encode_plain(lm, text), samples, prompt + new), prompt=prompt)
        said[name] = found
        for policy, values in found.items():
            out.print(f"{name}: {policy} {np.mean(values):.4f} ± {np.std(values) / len(values) ** 0.5:.4f}", markup=False)
        for policy, less in learned_less(found).items():
            out.print(f"{name}: learned less {policy} {less.mean:.4f} ({less.low:.4f} to {less.high:.4f})", markup=False)
    write_json(json_file, said)


if __name__ == "__main__":
    typer.run(main)
