"""What a trained model still recalls when some of its layers alone keep a cache: served, against the same model trained as usual.

    python -m experiments.train.recalled --made out/shared --made out/usual --every 1,2,4 --json FILE --picture docs/FILE.png

A prompt is the pairs of a recall text, compressed with the policy `full`; the questions are then fed to the cache, and an answer is
the likeliest token. Texts are drawn anew: none was trained on.
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
from experiments.pictures.learning import draw
from experiments.provenance import machine, versions
from experiments.stats import share
from experiments.train.data import recall
from kvjax.artefacts.artefact import Artefact, load
from kvjax.train import Example, trained


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


def served(artefact: Artefact, every: Sequence[int], texts: int) -> dict[str, dict[str, float]]:
    """By number of layers to a cache: the share that is recalled with its 95% interval, and bytes a token of the prompt."""
    lm = loaded(artefact.model["name"], reads_text=False)
    settings = artefact.settings
    examples = recall.examples(lm, "served", count=texts, length=settings["length"], seed=settings["seed"])
    whole, found = trained(lm, artefact, artefact.method), {}
    tokens = sum(example.label.index(True) - 1 for example in examples)
    for n in every:
        right, nbytes = hits(models.share_layers(whole, every=n), examples, kvjax.methods.full())
        said = share(right)
        found[str(n)] = dict(recalled=said.mean, low=said.low, high=said.high, answers=said.count, bytes_a_token=nbytes / tokens)
    return found


def main(
    made: Annotated[list[Path], typer.Option("--made", help="Folder of an artefact that `kvjax train` made; may be repeated.")],
    every: Annotated[str, typer.Option(help="Layers to a cache, by commas; 1 is the full cache.")] = "1,2,4",
    texts: Annotated[int, typer.Option(min=1, help="Texts, each with as many questions as pairs.")] = 64,
    thin: Annotated[int, typer.Option(min=1, help="Every so many-th line of the logs is kept.")] = 20,
    json_file: JsonFile = None,
    picture: Annotated[Path | None, typer.Option("--picture", help="PNG of the logs.")] = None,
) -> None:
    """Recall and bytes, full cache and shared ones, of every model that is named."""
    counts = [int(n) for n in every.split(",")]
    runs = {}
    for folder in made:
        artefact = load(folder)
        lines = [json.loads(line) for line in (beside(folder) / "log.jsonl").read_text().splitlines()]
        found = served(artefact, counts, texts)
        runs[folder.name] = {"artefact": artefact.header, "served": found, "log": lines[:: thin] + lines[-1:]}
        for n, said in found.items():
            out.print(
                f"{folder.name}: a cache for one layer in {n}: {said['recalled']:.1%} ({said['low']:.1%} to {said['high']:.1%}) of "
                f"{said['answers']:.0f} answers, {said['bytes_a_token']:.0f} bytes a token",
                markup=False,
            )
    write_json(json_file, {"texts": texts, "machine": machine(), "versions": versions(), "runs": runs})
    if picture is not None:
        draw({name: run["log"] for name, run in runs.items()}, picture)


if __name__ == "__main__":
    typer.run(main)
