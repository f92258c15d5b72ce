"""Coupled Quantization: contiguous channels share one code, from codebooks fitted where the loss feels them.

*KV Cache is 1 Bit Per Channel: Efficient Large Language Model Inference with Coupled Quantization*, NeurIPS 2024, arXiv 2405.03917,
section 3.
Stages: encode Stored(keys=Coupled, values=Coupled, positions=Unrotated()) · nothing is evicted; any policy can take its `encode`.
Keys are coded before the rotary embedding and turned at every reading. Codebooks come from an artefact, one for each layer, KV head
and group of channels; the built-in one has 4 channels a code of 6 bits, 1.5 bits a number.
Differs: calibration of the built-in artefact reads 8 texts of 1,024 tokens and updates its clusters at most 25 times, the paper 16
of 2,048 and up to 100 times: calibrate a model for what is to be compared. A prompt attends exactly.

BibTeX:
    @inproceedings{zhang2024kv,
      title={KV Cache is 1 Bit Per Channel: Efficient Large Language Model Inference with Coupled Quantization},
      author={Zhang, Tianyi and Yi, Jonah and Xu, Zhaozhuo and Shrivastava, Anshumali},
      booktitle={Advances in Neural Information Processing Systems}, year={2024}}

Example:
    >>> kvjax.methods.coupled_quantization().encode.keys.bits_a_number(64)
    Fraction(3, 2)
"""

from pathlib import Path

from kvjax.artefacts.artefact import Artefact, resolve
from kvjax.codec import Coupled
from kvjax.encode import Stored, Unrotated
from kvjax.policy import Policy


def coupled_quantization(artefact: Artefact | str | Path = "smollm2-135m") -> Policy:
    """Keep every token, as codes of a few channels each.

    Args:
        artefact: an Artefact, the path of one, or the name of a built-in one; of the model that will be prefilled.
    """
    found = resolve(artefact, "coupled_quantization")
    keys, values = (Coupled(found.tables[name], origin=f"{name}, {found.origin}") for name in ("keys", "values"))
    return Policy(encode=Stored(keys=keys, values=values, positions=Unrotated()))
