"""Sizes of a config compared with the headers of the weights, before anything of such a size is made."""

import re
from typing import Any

from kvjax.checks import brief
from models.weights import Tensors

_LAYER = re.compile(r"model\.layers\.(\d+)\.")


def check_sizes(hf: dict[str, Any], tensors: Tensors) -> None:
    """See that a config asks for no more layers, and for no wider ones, than the weights have.

    Args:
        hf: a config.json.   tensors: the weights, by Hugging Face's names.

    Raises:
        ValueError: it does; with both sizes.
    """
    layers = len({found[1] for found in map(_LAYER.match, tensors.shapes) if found})
    widest = max((size for shape in tensors.shapes.values() for size in shape), default=0)
    _check(tensors, "num_hidden_layers", hf, most=layers, have=f"the weights have {layers} layers")
    for name in ("hidden_size", "head_dim"):
        _check(tensors, name, hf, most=widest, have=f"no dimension of a weight is above {widest}")


def _check(tensors: Tensors, name: str, hf: dict[str, Any], *, most: int, have: str) -> None:
    size = hf.get(name)
    if isinstance(size, int) and size > most:
        advice = "download the config and the weights of one model"
        raise ValueError(f"{tensors.origin}: the config's {name} is {brief(size)}, but {have}; {advice}")
