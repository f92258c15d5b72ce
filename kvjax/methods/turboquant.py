"""TurboQuant: keys and values turned so that all channels are alike, each channel coded by one fixed table of levels.

*TurboQuant: Online Vector Quantization with Near-optimal Distortion Rate*, ICLR 2026, arXiv 2504.19874, sections 3.1 and 3.2.
Stages: encode Stored(keys=Rotated(Normed(Levels)), values=the same) · nothing is evicted; any policy can take its `encode`.
A token is coded as it comes, after the rotary embedding; a norm is kept beside its codes. `inner_product=True` codes keys with one
bit less, and their error as signs of a random projection: q·k^ is then q·k on average. `engine=True` is what vLLM serves: one
rotation without signs, levels of the normal limit, ties up, decoded directions of unit length, values in uniform steps and not
rotated; keys of 8 bits are 8-bit floating point. Its levels are sums over 200 points, and lie within 0.1% of those here.
Differs: rotations are signed Hadamard matrices unless `rotation=Haar(seed)`, one for all layers. Channels all have the same bits:
the paper's 2.5 and 3.5 bits, which code some with one more, are not here. The engine leaves the first and last two layers as they
are; here a layer is left if `exact_layers` names it. A prompt attends exactly, in the engine its first chunk does: later ones read
what was coded.

BibTeX:
    @inproceedings{zandieh2026turboquant,
      title={TurboQuant: Online Vector Quantization with Near-optimal Distortion Rate},
      author={Zandieh, Amir and Daliri, Majid and Hadian, Majid and Mirrokni, Vahab},
      booktitle={International Conference on Learning Representations}, year={2026}}

Example:
    >>> kvjax.methods.turboquant(key_bits=4).encode.keys.bits_a_number(128)
    Fraction(33, 8)
"""

from kvjax.by_layer import by_layer
from kvjax.codec import Codec, Fp8, Hadamard, Levels, Normed, Refined, Rotated, Rotation, SignSketch, Uniform
from kvjax.encode import Stored
from kvjax.policy import Policy


def turboquant(
    key_bits: int = 4, value_bits: int = 4, inner_product: bool = False, engine: bool = False, rotation: Rotation = Hadamard(),
    exact_layers: tuple[int, ...] = (),
) -> Policy:  # fmt: skip
    """Keep every token, a few bits a channel and a norm.

    Args:
        key_bits, value_bits: of a code, 1 to 8.
        inner_product: whether keys are coded for unbiased scores; not with `engine`.
        engine: whether codes are those of the inference engine.
        rotation: Hadamard(seed) or Haar(seed); of no account with `engine`.
        exact_layers: layers that are not coded, counted from 0; the engine's, of L: (0, 1, L - 2, L - 1).
    """
    if engine and inner_product:
        raise ValueError("the engine leaves the inner-product term out: take inner_product=True or engine=True, not both")
    if engine:
        coded = Stored(keys=_engine_keys(key_bits), values=Uniform(bits=value_bits))
    else:
        keys = _inner_product(key_bits, rotation.seed) if inner_product else Normed(Levels(bits=key_bits))
        keys, values = (Rotated(codec, rotation=rotation) for codec in (keys, Normed(Levels(bits=value_bits))))
        coded = Stored(keys=keys, values=values)
    if not exact_layers:
        return Policy(encode=coded)
    return Policy(encode=by_layer(coded, {tuple(exact_layers): Stored()}))


def _inner_product(bits: int, seed: int) -> Codec:
    """Levels of one bit less, then the signs of what they miss."""
    signs = SignSketch(ratio=1, seed=seed + 1, orthogonal=False)
    return Refined(Normed(Levels(bits=bits - 1)), rest=signs) if bits > 1 else signs


def _engine_keys(bits: int) -> Codec:
    if bits == 8:
        return Fp8("e4m3")
    levels = Normed(Levels(bits=bits, density="normal", ties_up=True), corrected=True)
    return Rotated(levels, rotation=Hadamard(signed=False, blocks=False))
