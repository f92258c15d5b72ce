"""Weights of the model itself that a method has trained, put in place of those it came with."""

from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Array, PyTree

from kvjax.artefacts.artefact import Artefact, ArtefactLike, load, resolve
from kvjax.artefacts.weights import path_of, weights_of
from kvjax.protocols import Decoder, LanguageModel


def own_weights(params: PyTree, paths: Sequence[str] = ()) -> PyTree:
    """What is trained of a model's layers: nested dicts as a layer's own, float32, each leaf [l, ...].

    Args:
        paths: such as attention.q, with all that is beneath; none: everything in a layer.

    Raises:
        ValueError: a path that layers do not have, or layers that share a cache.
    """
    first = _flat(params["layers"][0])
    beneath = {path: [name for name in first if f"{name}.".startswith(f"{path}.")] for path in paths}
    if missing := [path for path, names in beneath.items() if not names]:
        raise ValueError(f"a layer has no {', '.join(missing)}; it has {', '.join(first)}")
    names = sorted({name for found in beneath.values() for name in found}) if paths else sorted(first)
    layers = [_flat(layer) for layer in params["layers"]]
    return unflatten_dict({name: jnp.stack([layer[name] for layer in layers]).astype(jnp.float32) for name in names}, sep=".")


def with_weights(params: PyTree, weights: PyTree) -> PyTree:
    """The parameters with those of `own_weights` in their place, in the dtype of each; differentiable in them."""
    made = []
    for index, layer in enumerate(params["layers"]):
        old, new = _flat(layer), flatten_dict(jax.tree.map(lambda w: w[index], weights), sep=".")  # noqa: B023
        made.append(unflatten_dict(old | {name: jnp.asarray(x, old[name].dtype) for name, x in new.items()}, sep="."))
    return {**params, "layers": made}


#: Methods whose artefacts hold weights of the model itself: of its layers, or all parameters.
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
    return lm.replace(params=_params(lm, found), name=name_of(lm, found), decoder=decoder)


def trained_for(model: Decoder) -> str:
    """The method of `OWN` that a model's own weights were trained for; "" where they are those it came with."""
    return model.retrofit.partition(" of ")[0]


def _params(lm: LanguageModel, artefact: Artefact) -> PyTree:
    """The model's parameters with the artefact's in their place."""
    if set(artefact.tables) != {path_of(at) for at, _ in jax.tree_util.tree_leaves_with_path(lm.params)}:
        weights = weights_of(artefact)
        _check_shapes(lm.params, weights)
        return with_weights(lm.params, weights)

    return jax.tree_util.tree_map_with_path(lambda at, x: jnp.asarray(artefact.tables[path_of(at)], x.dtype), lm.params)


def name_of(lm: LanguageModel, artefact: Artefact) -> str:
    """What a retrofitted model is called: prefilled prompts and artefacts of it are not those of the model it came from."""
    return f"{lm.name}+{artefact.method}-{artefact.digest}"


def _check_shapes(params: PyTree, weights: PyTree) -> None:
    mine, layers = _flat(params["layers"][0]), len(params["layers"])
    wrong = [
        f"{name}: {(layers, *mine[name].shape) if name in mine else None} in the model, {x.shape} given"
        for name, x in flatten_dict(weights, sep=".").items()
        if name not in mine or x.shape != (layers, *mine[name].shape)
    ]
    if wrong:
        raise ValueError(f"these weights are not this model's ({'; '.join(wrong)}): train them with it")


def _flat(layer: PyTree) -> dict[str, Array]:
    if not isinstance(layer, dict):
        raise ValueError("a model is retrofitted whose layers all have a cache: begin with the model as it was loaded")
    return flatten_dict(layer, sep=".")
