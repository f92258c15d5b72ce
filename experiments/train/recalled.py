"""What a trained model still recalls with a part of its cache: served, beside the same model without the training for it.

    python -m experiments.train.recalled --made out/shared --made out/usual --json FILE --picture docs/FILE.png

A prompt is what comes before a text's first answer (the pairs of recall, a text with a passkey), read and cut by kvjax; what is
left is then fed to the cache, and an answer is the likeliest token. Texts are drawn anew, those made of other texts of the
held-out split.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import kvjax
import models
from experiments.commands.train import beside, loaded
from experiments.console import JsonFile, out, write_json
from experiments.provenance import machine, versions
from experiments.stats import share
from experiments.text_splits import splits
from experiments.train.data import find as find_data
from experiments.train.data import reads_text
from kvjax.artefacts.artefact import Artefact, load
from kvjax.artefacts.retrofit import retrofitted
from kvjax.train import Example

#: Layers to a cache, where layers share one.
EVERY = (1, 2, 4)
#: A way to serve a model: the model, and the policy that cuts its prompts.
Way = tuple[Any, kvjax.Policy]


def ways(artefact: Artefact, lm: Any) -> dict[str, Way]:
    """How a model is served to see what its training was for: with all of the cache, and with less.

    Raises:
        ValueError: an artefact of a method that trains no model.
    """
    full, settings = kvjax.methods.full(), artefact.settings
    if artefact.method == "stochastic_kv_routing":
        return {f"a cache for one layer in {n}": (models.share_layers(lm, every=n), full) for n in EVERY}
    if artefact.method != "neural_garbage_collection":
        raise ValueError(f"{artefact.origin}: a model is trained by stochastic_kv_routing or neural_garbage_collection")
    sizes = {name: settings[name] for name in ("share", "size", "window")}
    forgetful = kvjax.methods.neural_garbage_collection(**sizes, interval=settings["length"], after_prefill=True)
    at_random = kvjax.methods.random(budget=settings["share"])
    return {"all blocks": (lm, full), "the blocks it looks at": (lm, forgetful), "as many tokens at random": (lm, at_random)}


def hits(lm: Any, examples: Sequence[Example], policy: kvjax.Policy) -> tuple[list[float], int]:
    """(1 for each answer that is right and 0 for each that is not, bytes of the prompts' cache in use)."""
    asked = [example.label.index(True) - 1 for example in examples]
    prompts = [list(x.ids[:at]) for x, at in zip(examples, asked, strict=True)]
    rest = [list(x.ids[at:]) for x, at in zip(examples, asked, strict=True)]
    cache = kvjax.compress(kvjax.prefill(lm, prompts, needs=policy), policy)
    nbytes = int(cache.used_nbytes)
    said = np.asarray(kvjax.extend(lm, cache, rest, policy, return_logits=True).logits).argmax(-1)
    right = [
        float(said[row, i - 1] == ids[i])
        for row, (ids, x, at) in enumerate(zip(rest, examples, asked, strict=True))
        for i in range(len(ids))
        if x.label[at + i]
    ]
    return right, nbytes


def anew(lm: Any, kind: str, *, count: int, length: int, seed: int) -> list[Example]:
    """Texts of a kind of data that no training with this seed has read."""
    make = find_data(kind).examples
    if reads_text(kind):
        return make(lm, splits()["held-out"].text, count=count, length=length, seed=seed + 1)
    return make(lm, "served", count=count, length=length, seed=seed)


def served(artefact: Artefact, texts: int) -> dict[str, dict[str, float]]:
    """By the way it is served: the share of answers that are right with its 95% interval, and bytes a token of the prompt."""
    kind, settings = artefact.data["kind"], artefact.settings
    lm = loaded(artefact.model["name"], reads_text=reads_text(kind))
    examples = anew(lm, kind, count=texts, length=settings["length"], seed=settings["seed"])
    tokens, found = sum(example.label.index(True) - 1 for example in examples), {}
    for name, (model, policy) in ways(artefact, retrofitted(lm, artefact)).items():
        right, nbytes = hits(model, examples, policy)
        said = share(right)
        found[name] = dict(recalled=said.mean, low=said.low, high=said.high, answers=said.count, bytes_a_token=nbytes / tokens)
    return found


def main(
    made: Annotated[list[Path], typer.Option("--made", help="Folder of an artefact that `kvjax train` made; may be repeated.")],
    texts: Annotated[int, typer.Option(min=1, help="Texts, each with half as many questions as pairs.")] = 64,
    thin: Annotated[int, typer.Option(min=1, help="Every so many-th line of the logs is kept.")] = 10,
    json_file: JsonFile = None,
    picture: Annotated[Path | None, typer.Option("--picture", help="PNG of the logs.")] = None,
) -> None:
    """Recall and bytes of every model that is named, and what its run said at every step."""
    runs = {}
    for folder in made:
        artefact = load(folder)
        lines = [json.loads(line) for line in (beside(folder) / "log.jsonl").read_text().splitlines()]
        found = served(artefact, texts)
        runs[folder.name] = {"artefact": artefact.header, "served": found, "log": lines[::thin]}
        for name, said in found.items():
            out.print(
                f"{folder.name}, {name}: {said['recalled']:.1%} ({said['low']:.1%} to {said['high']:.1%}) of {said['answers']} "
                f"answers, {said['bytes_a_token']:.0f} bytes a token",
                markup=False,
            )
    write_json(json_file, {"texts": texts, "machine": machine(), "versions": versions(), "runs": runs})
    if picture is not None:
        from experiments.pictures.learning import draw  # it sets matplotlib's backend; a notebook that takes `hits` has its own

        draw({name: run["log"] for name, run in runs.items()}, picture)


if __name__ == "__main__":
    typer.run(main)
