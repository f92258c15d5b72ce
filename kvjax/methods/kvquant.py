"""KVQuant: non-uniform codes of keys by channel and of values by token, outliers and the first token exact.

*KVQuant: Towards 10 Million Context Length LLM Inference with KV Cache Quantization*, NeurIPS 2024, arXiv 2401.18079, section 3.
Stages: encode Stored(keys=NonUniformChannels, values=NonUniformTokens, positions=Unrotated(), sinks=1) · nothing is evicted; any
policy that evicts after the prompt can take its `encode`.
Keys are coded before the rotary embedding and turned at every reading. Thresholds of key channels and the levels of every layer
come from an artefact; a value's range is its token's own, without its ends.
Differs: outliers are a fixed number a token and KV head, of keys those beyond the thresholds, of values one on either side. A
value's range is that of one KV head. A token is exact in its own step and coded after it. A prompt attends exactly.
The built-in artefact has read 8 texts of 1,024 tokens, the paper's 16 of 2,048.

BibTeX:
    @inproceedings{hooper2024kvquant,
      title={KVQuant: Towards 10 Million Context Length LLM Inference with KV Cache Quantization},
      author={Hooper, Coleman and Kim, Sehoon and Mohammadzadeh, Hiva and Mahoney, Michael W. and Shao, Yakun Sophia and
        Keutzer, Kurt and Gholami, Amir},
      booktitle={Advances in Neural Information Processing Systems}, year={2024}}

Example:
    >>> kvjax.methods.kvquant(bits=3).encode.keys.bits_a_number(128)
    Fraction(27, 8)
"""

from pathlib import Path

from kvjax.artefacts.artefact import Artefact, resolve
from kvjax.codec import NonUniformChannels, NonUniformTokens
from kvjax.encode import Slide, Stored, Unrotated
from kvjax.policy import Policy


def kvquant(
    artefact: Artefact | str | Path = "smollm2-135m", bits: int = 3, matched: bool = False, outliers: int = 2, sinks: int = 1
) -> Policy:
    """Keep every token, in a few bits and a few exact numbers.

    Args:
        artefact: an Artefact, the path of one, or the name of a built-in one; of the model that will be prefilled.
        bits: of a code: 2, 3 or 4.
        matched: whether decoded numbers get back the mean and deviation that coding takes, the paper's Q-Norm, for 2 bits.
        outliers: exact numbers of a token's key at most, in each KV head.   sinks: first tokens that stay exact; calibration
            leaves the first of a text out, so that 0 codes it badly.
    """
    found = resolve(artefact, "kvquant")
    if f"levels_{bits}" not in found.tables:
        known = sorted(int(name[7:]) for name in found.tables if name.startswith("levels_"))
        raise ValueError(f"the artefact has levels of {known} bits; got {bits}")
    levels, decoded = (found.tables[f"{name}_{bits}"] for name in ("levels", "matched" if matched else "levels"))
    origin = f"{bits} bits, matched {matched}, {found.origin}"
    keys = NonUniformChannels(
        levels=levels[:, 0], decoded=decoded[:, 0], low=found.tables["low"], high=found.tables["high"], outliers=outliers,
        origin=f"keys, {origin}",
    )  # fmt: skip
    values = NonUniformTokens(
        levels=levels[:, 1], decoded=decoded[:, 1], each=found.settings["each"], origin=f"values, {origin}"
    )
    window = Slide(0) if sinks else None
    return Policy(encode=Stored(keys=keys, values=values, positions=Unrotated(), window=window, sinks=sinks))
