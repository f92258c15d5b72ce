"""DuoAttention's learned heads beside those that CompressKV finds without learning: heads that look at answers.

    python -m experiments.train.retrieval_heads --gate FOLDER --json FILE

tells how alike the two rankings are.
"""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from jaxtyping import Bool, Float
from scipy.stats import spearmanr

from experiments.console import JsonFile, out, write_json
from kvjax.allocate.full_heads import full_heads
from kvjax.artefacts.artefact import Artefact, built_in, resolve


def scores_of(artefact: Artefact) -> Float[np.ndarray, "l h"]:
    """CompressKV's retrieval score of each KV head: the mean of its query heads'.

    Args:
        artefact: of CompressKV; its table `srh_score` is [L, H_q].
    """
    layers, heads = (int(artefact.model[name]) for name in ("layers", "heads"))
    return artefact.tables["srh_score"].astype(np.float64).reshape(layers, heads, -1).mean(-1)


def scores_for(model: str) -> Float[np.ndarray, "l h"] | None:
    """`scores_of` the artefact that comes with the library for this model; None where none does."""
    return scores_of(resolve(model, "compresskv")) if f"{model}/compresskv" in built_in() else None


def as_many(scores: Float[np.ndarray, "l h"], flags: Bool[np.ndarray, "l h"]) -> Bool[np.ndarray, "l h"]:
    """As many full heads as `flags` has, those of the highest scores."""
    rank = np.argsort(np.argsort(scores.ravel(), kind="stable"), kind="stable").reshape(scores.shape)
    return rank >= flags.size - flags.sum()


def agreement(alpha: Float[np.ndarray, "l h"], scores: Float[np.ndarray, "l h"], sparsity: float = 0.5) -> dict[str, float]:
    """How alike two rankings of heads are.

    Returns:
        spearman, p_value: Spearman's ρ over all heads, equal numbers at their mean rank, and the chance of one as far from 0.
        shared: of the heads that are full by α, the share that are among as many of the highest scores.
    """
    found, flags = spearmanr(alpha.ravel(), scores.ravel()), full_heads(alpha, sparsity)
    shared = (flags & as_many(scores, flags)).sum() / max(flags.sum(), 1)
    return {"spearman": float(found.statistic), "p_value": float(found.pvalue), "shared": float(shared)}


def main(
    gate: Annotated[Path, typer.Option("--gate", help="Folder of an artefact that `kvjax train duo_attention` made.")],
    json_file: JsonFile = None,
) -> None:
    """Spearman's ρ of α and of the scores of CompressKV's artefact for the same model."""
    artefact = resolve(gate, "duo_attention")
    model = str(artefact.model["name"])
    scores = scores_for(model)
    if scores is None:
        raise typer.BadParameter(f"no artefact of compresskv is built in for {model}; there are {built_in()}")
    found = agreement(artefact.tables["alpha"], scores)
    out.print(", ".join(f"{name} {x:.4g}" for name, x in found.items()), markup=False)
    write_json(json_file, {"artefact": artefact.origin, "heads": int(scores.size), **found})


if __name__ == "__main__":
    typer.run(main)
