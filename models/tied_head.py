"""Whether the head is the embedding: what the config says, held against what the weights hold."""

import warnings
from dataclasses import replace

import numpy as np

from models.config import DecoderConfig
from models.weights import Tensors


def settled(config: DecoderConfig, names: dict[str, str], tensors: Tensors) -> tuple[DecoderConfig, dict[str, str]]:
    """Return the config and the names to load by, as transformers decides where a config ties the head to the embedding.

    A head that equals the embedding is dropped; one that differs is used, with a warning, and nothing is tied; where there is a
    head and no embedding, the head is the embedding too.

    Args:
        config, names, tensors: as in `weights.assemble`. Where both matrices are there they are read and compared, before
            anything is loaded.
    """
    embed, head = names["embed.weight"], names["head.weight"]
    if not config.tied or head not in tensors.shapes:
        return config, names
    if embed not in tensors.shapes:
        return config, names | {"embed.weight": head}
    if tensors.shapes[embed] == tensors.shapes[head] and np.array_equal(tensors.read(embed), tensors.read(head)):
        return config, names
    advice = "set tie_word_embeddings to false to silence this"
    said = f"the config ties the head to the embedding, but the weights hold a {head} of its own, which is used; {advice}"
    warnings.warn(f"{tensors.origin}: {said}", stacklevel=4)
    return replace(config, tied=False), names
