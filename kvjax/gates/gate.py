"""What every gate is, and its weights for all layers."""

from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, PyTree

from kvjax.attention_inputs import AttentionInputs
from kvjax.protocols import Decoder

#: The origin of a gate of the model itself, whichever model that is.
ANY_MODEL = "the model"


class Gate(nn.Module):
    """Fields of `AttentionInputs` → one number a token and KV head, float32 [b h t].

    Attributes:
        reads: the fields, in the order `__call__` takes them.
        of_model: whether it has no weights and reads what the model itself was trained to say.
    """

    reads: ClassVar[tuple[str, ...]] = ("x",)
    of_model: ClassVar[bool] = False

    def __call__(self, *inputs: Array) -> Float32[Array, "b h t"]:
        raise NotImplementedError(f"{type(self).__name__} must define __call__({', '.join(self.reads)})")


def read(gate: Gate, weights: PyTree, inputs: AttentionInputs) -> Float32[Array, "b h t"]:
    """The gate's values for the tokens whose attention inputs are given; weights of one layer."""
    return gate.apply({"params": weights}, *(getattr(inputs, name) for name in gate.reads))


def _example(model: Decoder, name: str) -> Array:
    """One token of a field of `AttentionInputs`."""
    if name in ("x", "residual"):
        return jnp.zeros((1, 1, model.config.width))
    heads = (1, model.heads, model.groups, 1) if name in ("q", "q_raw") else (1, model.heads, 1)
    return jnp.zeros((*heads, model.head_dim))


def init_gate(gate: Gate, key: Array, model: Decoder) -> PyTree:
    """Weights of all layers, each leaf [l, ...], drawn layer by layer from `key`; `model`: the decoder."""
    inputs = [_example(model, name) for name in gate.reads]
    return jax.vmap(lambda key: gate.init(key, *inputs).get("params", {}))(jax.random.split(key, model.layers))


def check_gate(gate: Gate, weights: PyTree, model: Decoder) -> None:
    """Raise ValueError where the weights are not this gate's for this model."""
    wanted = _shapes(jax.eval_shape(lambda: init_gate(gate, jax.random.key(0), model)))
    found = _shapes(weights)
    inputs = [_example(model, name) for name in gate.reads]
    said, _ = jax.eval_shape(lambda: gate.init_with_output(jax.random.key(0), *inputs))
    wanted["KV heads"], found["KV heads"] = (model.heads,), said.shape[1:2]
    if wanted != found:
        differ = sorted(name for name in wanted | found if wanted.get(name) != found.get(name))
        told = "; ".join(f"{name}: {wanted.get(name)} wanted, {found.get(name)} given" for name in differ)
        raise ValueError(f"weights of {type(gate).__name__} are not this model's ({told}): use the gate trained with it")


def check_retrofit(origin: str, model: Decoder) -> None:
    """Raise ValueError where the model's own weights are not those of the artefact that a gate `of_model` was made from."""
    if origin not in (ANY_MODEL, model.retrofit):
        raise ValueError(
            f"this policy was made from {origin}, whose weights are the model's own; this model has "
            f"{f'those of {model.retrofit}' if model.retrofit else 'the weights it came with'}: put them in place with "
            'models.load("MODEL+FOLDER") or kvjax.artefacts.retrofitted(lm, FOLDER), FOLDER being that artefact\'s'
        )


def _shapes(weights: PyTree) -> dict[str, tuple[int, ...]]:
    """Every leaf's shape by its path."""
    leaves = jax.tree_util.tree_leaves_with_path(weights)
    return {jax.tree_util.keystr(at, simple=True, separator="."): x.shape for at, x in leaves}
