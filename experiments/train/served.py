"""Whether learned weights are worth serving: nats per token of held-out text behind a prompt that was cut.

    python -m experiments.train.served --model smollm2-135m --gate FOLDER [--gate FOLDER ...] --budget 64 --json FILE

The prompts are cut once, after they are read, whatever the method does later; the continuation is then fed as it is. Methods that
go on acting are measured a second time, "while decoding": every policy on its own schedule, the continuation fed a token at a time.
Several gates share a prefill, and what needs no learning is measured once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import kvjax
from experiments.calibrate.text import stretches
from experiments.console import JsonFile, ModelName, Seed, out, write_json
from experiments.stats import Estimate, average, standard_error
from experiments.tasks.chat import encode_plain
from experiments.tasks.text import haystack
from experiments.text_splits import splits
from experiments.train import find
from experiments.train.answers import answer_nats
from experiments.train.data import find as find_data
from experiments.train.merged import by_text
from experiments.train.retrieval_heads import as_many, scores_for
from kvjax.allocate import AcrossModel, AllHeld
from kvjax.artefacts.artefact import Artefact, load
from kvjax.artefacts.weights import tables_of
from kvjax.select import TopK
from kvjax.train import Example

#: First and last tokens that stay where a gate's own rule is put aside for a budget; the first as in `streaming_llm`.
SINKS, RECENT = 4, 16
#: What a kind of text is called where policies keep their schedules.
DECODING = ", while decoding"
#: What some methods are compared with beside what all are.
BESIDE = {"kvzap": "kvzip", "less": "h2o", "lococo": "h2o"}


def nats(lm: Any, policies: Mapping[str, kvjax.Policy], texts: Sequence[Sequence[int]], *, prompt: int) -> dict[str, list[float]]:
    """Nats per token of each text's tokens from `prompt` + 1 on, by policy: the first is predicted by the uncut prompt."""
    return answer_nats(lm, policies, [Example(tuple(ids), tuple(i >= prompt for i in range(len(ids)))) for ids in texts])


def rivals(artefact: Artefact, lm: Any, budget: int, seed: int, sinks: int = 0) -> dict[str, kvjax.Policy]:
    """The policy of an artefact, that of the weights it began with, and what needs no learning at `budget` slots.

    All are beside `streaming_llm` and `snapkv`; KVzap beside KVzip, which it is taught by; LESS and LoCoCo beside H2O, whose cache
    they add to; heads that are told apart beside as many drawn at random, and beside those of CompressKV's highest scores where its
    artefact is built in.
    """
    methods, settings = kvjax.methods, artefact.settings
    plain = {name: getattr(methods, name)(budget=budget) for name in ("streaming_llm", "snapkv")}
    beside = BESIDE.get(artefact.method)
    plain |= {beside: getattr(methods, beside)(budget=budget)} if beside else {}
    plain = {"full": methods.full(), **plain}
    if artefact.method != "duo_attention":
        return plain | _gates(artefact, lm, budget, sinks)
    sizes = dict(sinks=settings["sinks"], recent=settings["recent"])
    draw = np.random.default_rng(seed)
    flags = np.asarray(methods.duo_attention(artefact=artefact).allocate.pattern)
    shuffled = {f"shuffled {i}": draw.permutation(flags.ravel()).reshape(flags.shape) for i in range(3)}
    first = np.arange(flags.size).reshape(flags.shape) < flags.sum()
    scores = scores_for(str(artefact.model["name"]))
    known = {} if scores is None else {"compresskv's heads": as_many(scores, flags)}
    patterns = {"learned": flags, "untrained": first, **known, **shuffled}
    return plain | {name: methods.duo_attention(pattern, **sizes) for name, pattern in patterns.items()}


def _gates(artefact: Artefact, lm: Any, budget: int, sinks: int) -> dict[str, kvjax.Policy]:
    from kvjax.train import untrained

    kind = type(find(artefact.method).learner(find(artefact.method).DEFAULTS, None))
    learner = kind(**{field.name: artefact.settings[field.name] for field in fields(kind)})
    start = replace(artefact, tables=tables_of(untrained(lm, learner, artefact.settings["seed"])))
    build = getattr(kvjax.methods, artefact.method)
    both = {"learned": build(artefact=artefact), "untrained": build(artefact=start)}
    return {name: at_budget(policy, budget, sinks) for name, policy in both.items()}


def at_budget(policy: kvjax.Policy, budget: int, sinks: int = 0) -> kvjax.Policy:
    """The policy with heads of `budget` slots on average, the first `sinks` tokens in each of them whatever a gate says.

    Where a gate says how many stay, the best of all heads stay instead; where the last tokens alone would fill a head, RECENT stay.
    """
    if isinstance(policy.allocate, AllHeld):
        policy = policy.replace(allocate=AcrossModel(), select=TopK(sinks=SINKS, recent=RECENT))
    if isinstance(policy.select, TopK) and policy.select.recent >= budget:
        policy = policy.replace(select=TopK(sinks=policy.select.sinks, recent=RECENT))
    if isinstance(policy.select, TopK) and policy.select.sinks < sinks:
        policy = policy.replace(select=TopK(sinks=sinks, recent=policy.select.recent))
    return policy.replace(budget=budget)


def slots(artefact: Artefact, budget: int, prompt: int) -> int:
    """Mean slots of a KV head: `budget`, or of DuoAttention what its full and its streaming heads hold of a prompt."""
    if artefact.method != "duo_attention":
        return budget
    full = float(np.mean(kvjax.methods.duo_attention(artefact=artefact).allocate.pattern))
    return round(full * prompt + (1 - full) * min(prompt, artefact.settings["sinks"] + artefact.settings["recent"]))


def together(found: Mapping[str, Mapping[str, kvjax.Policy]]) -> dict[str, dict[str, str]]:
    """A name of each policy of each method, one and the same for equal ones: method -> what it is there -> the name."""
    known: dict[str, kvjax.Policy] = {}
    names: dict[str, dict[str, str]] = {}
    for method, policies in found.items():
        for name, policy in policies.items():
            own = name in ("learned", "untrained") or known.setdefault(name, policy) != policy
            names.setdefault(method, {})[name] = f"{method}/{name}" if own else name
    return names


def learned_less(found: Mapping[str, Sequence[float]]) -> dict[str, Estimate]:
    """What the learned policy loses more than each other on the same texts: below 0 where it is better, with a 95% interval."""
    others = {name: values for name, values in found.items() if name != "learned"}
    return {
        name: average([mine - other for mine, other in zip(found["learned"], values, strict=True)])
        for name, values in others.items()
    }


def main(
    model: ModelName,
    gates: Annotated[list[Path], typer.Option("--gate", help="Folder of an artefact that `kvjax train` made; may be repeated.")],
    budget: Annotated[int, typer.Option(min=1, help="Slots per KV head, where the method takes a budget.")] = 64,
    samples: Annotated[int, typer.Option(min=1, help="Texts of each kind.")] = 12,
    prompt: Annotated[int, typer.Option(min=2, help="Tokens that are cut.")] = 256,
    new: Annotated[int, typer.Option(min=2, help="Tokens behind them.")] = 64,
    passkeys: Annotated[int, typer.Option(min=0, help="Held-out texts with passkeys of prompt + new tokens at most.")] = 0,
    sinks: Annotated[int, typer.Option(min=0, help="First tokens that stay in every head, whatever a gate says.")] = 0,
    seed: Seed = 0,
    json_file: JsonFile = None,
) -> None:
    """Held-out documentation, the essays that tasks are made of, and where asked passkeys in held-out documentation."""
    import models

    lm = models.load(model, dtype="float32")
    artefacts = {artefact.method: artefact for artefact in (load(gate, lm=lm) for gate in gates)}
    made = texts(lm, samples, prompt, new, passkeys, seed)
    said: dict[str, Any] = {"prompt": prompt, "new": new, "samples": samples, "sinks": sinks}
    if "dmc" in artefacts:
        said["dmc"] = _merging(lm, artefacts.pop("dmc"), made)
        write_json(json_file, said)
    found = {name: rivals(x, lm, slots(x, budget, prompt), seed, sinks) for name, x in artefacts.items()}
    said |= {name: {"artefact": x.origin, "slots": slots(x, budget, prompt)} for name, x in artefacts.items()}
    for text, examples in made.items():
        for kind, policies in ((text, found), (f"{text}{DECODING}", going_on(found))):
            for method, values in by_method(lm, policies, examples, decoding=kind != text).items():
                said[method][kind] = rounded(values)
                tell(method, kind, values)
        write_json(json_file, said)


def _merging(lm: Any, artefact: Artefact, made: Mapping[str, Sequence[Example]]) -> dict[str, Any]:
    """What the file has of a model that DMC trained."""
    held, values = by_text(lm, artefact, made)
    for text, x in values.items():
        tell("dmc", text, x)
    return {"artefact": artefact.origin, "slots": held, **{text: rounded(x) for text, x in values.items()}}


def rounded(values: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """To five digits, as files have them."""
    return {name: [round(x, 5) for x in every] for name, every in values.items()}


def tell(method: str, text: str, values: Mapping[str, Sequence[float]]) -> None:
    """What a person reads of a method on one kind of text."""
    for line in lines(values):
        out.print(f"{method}, {text}: {line}", markup=False)


def texts(lm: Any, samples: int, prompt: int, new: int, passkeys: int, seed: int) -> dict[str, list[Example]]:
    """Texts of each kind; none of them is one that `kvjax train` reads."""
    label = (False,) * prompt + (True,) * new
    held_out = splits()["held-out"].text
    made = {
        name: [Example(tuple(ids), label) for ids in stretches(encode_plain(lm, text), samples, prompt + new)]
        for name, text in {"held-out": held_out, "essays": haystack().text}.items()
    }
    hidden = find_data("passkeys").examples
    return made | ({"passkeys": hidden(lm, held_out, count=passkeys, length=prompt + new, seed=seed + 1)} if passkeys else {})


def going_on(found: Mapping[str, Mapping[str, kvjax.Policy]]) -> dict[str, Mapping[str, kvjax.Policy]]:
    """The policies of those methods that evict while decoding, too."""
    return {method: policies for method, policies in found.items() if policies["learned"].when.decoding}


def by_method(
    lm: Any, found: Mapping[str, Mapping[str, kvjax.Policy]], examples: Sequence[Example], *, decoding: bool = False
) -> dict[str, dict[str, list[float]]]:
    """`answer_nats` of each method's policies, equal ones measured once."""
    names = together(found)
    once = {name: found[method][at] for method, known in names.items() for at, name in known.items()}
    values = answer_nats(lm, once, examples, decoding=decoding) if once else {}
    return {method: {at: values[name] for at, name in known.items()} for method, known in names.items()}


def lines(values: Mapping[str, Sequence[float]]) -> list[str]:
    """What a person reads: means and standard errors, and how much the learned policy loses more than each other."""
    means = [f"{name} {np.mean(x):.4f} ± {standard_error(x)[0]:.4f}" for name, x in values.items()]
    less = [f"learned less {name} {x.mean:.4f} ({x.low:.4f} to {x.high:.4f})" for name, x in learned_less(values).items()]
    return means + less


if __name__ == "__main__":
    typer.run(main)
