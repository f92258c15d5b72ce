"""Weights of the model itself that a method has trained, put in place of those it came with."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from kvjax.artefacts.artefact import Artefact, ArtefactLike, load, resolve
from kvjax.artefacts.weights import path_of
from kvjax.protocols import Decoder, LanguageModel


def own_weights(params: PyTree, paths: Sequence[str] = ()) -> dict[str, Array]:
    """What is trained of a model itself: its parameters by their path, such as layers.0.attention.q.weight, in float32.

    Args:
        paths: parts of paths, such as layers, attention.q or mlp: what they stand in is trained; none: everything.

    Raises:
        ValueError: a path that stands in no parameter's.
    """
    named = {path_of(at): x for at, x in jax.tree_util.tree_leaves_with_path(params)}
    if missing := [path for path in paths if not any(_within(path, name) for name in named)]:
        few = [name for name in named if not name.startswith("layers.") or name.startswith("layers.0.")]
        raise ValueError(f"a model has no {', '.join(missing)}; it has {', '.join(few)}, and so on for each layer")
    mine = [name for name in named if not paths or any(_within(path, name) for path in paths)]
    return {name: named[name].astype(jnp.float32) for name in mine}


def _within(path: str, name: str) -> bool:
    return f".{path}." in f".{name}."


def with_weights(params: PyTree, weights: Mapping[str, Array | np.ndarray]) -> PyTree:
    """The parameters with those of `own_weights` in their place, in the dtype of each; differentiable in them."""
    return jax.tree_util.tree_map_with_path(lambda at, x: jnp.asarray(weights.get(path_of(at), x), x.dtype), params)


#: Methods whose artefacts hold weights of the model itself: all of them, or some.
OWN = ("dmc", "neural_garbage_collection", "stochastic_kv_routing")


def retrofitted(lm: LanguageModel, artefact: ArtefactLike) -> LanguageModel:
    """The model with the weights of an artefact that `kvjax train` made of it for a method of `OWN`, under a name of its own.

    Its decoder remembers the artefact's origin, which the policies made from that artefact ask for.

    Args:
        lm: the model as it was before training: its sizes and its name are compared.
        artefact: an Artefact, or the folder of one.

    Raises:
        FileNotFoundError, ValueError: no artefact there, one of another model or method, or weights of other shapes.

    Example:
        lm = kvjax.artefacts.retrofitted(models.load("smollm2-135m"), FOLDER)
        out = kvjax.generate(lm, text, kvjax.methods.dmc(artefact=FOLDER))
    """
    found = artefact if isinstance(artefact, Artefact) else load(artefact)
    if found.method not in OWN:
        raise ValueError(f"an artefact of {found.method} holds no weights of the model itself; those of {', '.join(OWN)} do")
    found = resolve(found, found.method, lm)
    decoder = replace(lm.decoder, retrofit=found.origin)
    _check_shapes(lm.params, found.tables)
    return lm.replace(params=with_weights(lm.params, found.tables), name=name_of(lm, found), decoder=decoder)


def trained_for(model: Decoder) -> str:
    """The method of `OWN` that a model's own weights were trained for; "" where they are those it came with."""
    return model.retrofit.partition(" of ")[0]


def name_of(lm: LanguageModel, artefact: Artefact) -> str:
    """What a retrofitted model is called: prefilled prompts and artefacts of it are not those of the model it came from."""
    return f"{lm.name}+{artefact.method}-{artefact.digest}"


def _check_shapes(params: PyTree, weights: Mapping[str, np.ndarray]) -> None:
    mine = {path_of(at): x.shape for at, x in jax.tree_util.tree_leaves_with_path(params)}
    wrong = [f"{name}: {mine.get(name)} in the model, {x.shape} given" for name, x in weights.items() if mine.get(name) != x.shape]
    if wrong:
        raise ValueError(f"these weights are not this model's ({'; '.join(wrong)}): train them with it")
