"""What files remember of the model they belong to, so that they are refused for another."""

import dataclasses
import hashlib
import json
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Array, PyTree

from kvjax.artefacts.artefact import model_facts
from kvjax.protocols import LanguageModel
from kvjax.weights_mark import weighed, words_of


def facts_of(lm: LanguageModel) -> dict[str, object]:
    """All of a model that its keys and values depend on, as JSON gives it back."""
    config = dataclasses.asdict(lm.decoder.config)
    facts = model_facts(lm) | config | {"dtype": str(dtype_of(lm)), "parameters": parameter_digest(lm.params)}
    return json.loads(json.dumps(facts))


def dtype_of(lm: LanguageModel) -> np.dtype:
    """The dtype of the model's keys and values."""
    return lm.params["embed"]["weight"].dtype


def known_of(lm: LanguageModel) -> dict[str, object]:
    """What a saved tree holds of the model, and is given again when it is read."""
    return {"decoder": lm.decoder, "rope": lm.decoder.rope}


def check_facts(path: Path, theirs: dict[str, object], mine: dict[str, object]) -> None:
    """Raise ValueError naming every fact in which the model differs."""
    differ = [name for name in mine | theirs if mine.get(name) != theirs.get(name)]
    if differ:
        found = "; ".join(
            f"{name}: the model has {_short(mine.get(name))}, the file {_short(theirs.get(name))}" for name in differ
        )
        raise ValueError(f"{path} was saved from another model ({found}): load that model, or prefill with this one")


def _short(x: object) -> str:
    text = repr(x)
    return text if len(text) <= 48 else text[:45] + "..."


def named(tree: PyTree) -> list[tuple[str, Array]]:
    """Every leaf with its path: `rows.0.k.3`."""
    return [(name_of(at), x) for at, x in jax.tree_util.tree_leaves_with_path(tree)]


def name_of(path: object) -> str:
    """A leaf's path in a pytree as one name."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def parameter_digest(params: PyTree) -> str:
    """Twelve hexadecimal digits over every weight: a model in which one number differs has another digest."""
    found = hashlib.sha256()
    for name, x in named(params):
        found.update(f"{name} {x.dtype} {x.shape} {int(_fingerprint(x))}".encode())
    return found.hexdigest()[:12]


@jax.jit
def _fingerprint(x: Array) -> Array:
    """Of every number of one weight."""
    return weighed(words_of(x))
