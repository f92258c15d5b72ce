"""KVTC: keys and values as quantised principal components of all heads, each as many bits as it is worth.

*KV Cache Transform Coding for Compact Storage in LLM Inference*, ICLR 2026, arXiv 2511.01815, section 3.
Stages: encode Stored(keys and values = Transformed(ComponentGroups), positions=Unrotated(), window=Slide(128), sinks=4) · nothing
is evicted; any policy that keeps as many slots in every head after the prompt can take its `encode`.
Keys before the rotary embedding. A basis a layer, and the bits of its components, which minimise the squared error on calibration
text, come from an artefact; `ratio` is that of 16-bit numbers to codes, without the exact tokens. The paper's last stage, DEFLATE,
is that of the file: `kvjax.save_cache(..., deflate=True)`.
Differs: a basis a layer, and not one across layers, so that a layer is read by itself; runs of components therefore share out fewer
bits. The cache stays coded while it is read, and is decoded layer by layer at every step; a token is coded once, when it leaves the
window. A prompt attends exactly.

BibTeX:
    @inproceedings{staniszewski2026kvtc,
      title={{KV} Cache Transform Coding for Compact Storage in {LLM} Inference},
      author={Staniszewski, Konrad and {\\L}a{\\'n}cucki, Adrian},
      booktitle={International Conference on Learning Representations}, year={2026}}

Example:
    >>> kvjax.methods.kvtc(ratio=16).encode.keys.bits_a_number(64)
    Fraction(1, 1)
"""

from pathlib import Path

from kvjax.artefacts.artefact import Artefact, resolve
from kvjax.codec import ComponentGroups, Transformed
from kvjax.encode import Slide, Stored, Unrotated
from kvjax.policy import Policy


def kvtc(
    artefact: Artefact | str | Path = "smollm2-135m", ratio: int = 8, recent: int = 128, sinks: int = 4
) -> Policy:
    """Keep every token, most of them in a few bits a number.

    Args:
        artefact: an Artefact, the path of one, or the name of a built-in one; of the model that will be prefilled.
        ratio: 16-bit numbers over codes, one that the artefact has bits for.
        recent: newest tokens that stay exact.   sinks: first tokens that do.
    """
    found = resolve(artefact, "kvtc")
    if f"keys_bits_{ratio}" not in found.tables:
        known = sorted(int(name.rpartition("_")[2]) for name in found.tables if name.startswith("keys_bits_"))
        raise ValueError(f"the artefact has bits for ratios of {known}; got {ratio}")
    keys, values = (_side(found, side, ratio) for side in ("keys", "values"))
    return Policy(encode=Stored(keys=keys, values=values, positions=Unrotated(), window=Slide(recent), sinks=sinks))


def _side(found: Artefact, side: str, ratio: int) -> Transformed:
    origin = f"{side}, {ratio}, {found.origin}"
    groups = ComponentGroups.of(found.tables[f"{side}_sizes_{ratio}"], found.tables[f"{side}_bits_{ratio}"], origin=origin)
    rank = groups.run.shape[-1]
    return Transformed(groups, basis=found.tables[f"{side}_basis"][..., :rank], mean=found.tables[f"{side}_mean"], origin=origin)
