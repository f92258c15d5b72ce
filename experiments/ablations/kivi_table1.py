"""KIVI, table 1: which axis keys and values share a step along, at two bits."""

from functools import partial

import kvjax
from experiments.ablations.ablation import Ablation, Setting, Variant, columns
from experiments.ablations.run import main
from kvjax.codec import Affine
from kvjax.encode import BlockFlush, Stored, Windows

COLUMNS = ("CoQA", "TruthfulQA")
#: (bits, keys, values) → scores; T: numbers of one token share a step and a minimum, C: numbers of one channel do.
PAPER = {
    (4, "T", "T"): (66.48, 29.51),
    (2, "T", "T"): (52.93, 24.98),
    (2, "C", "C"): (2.88, 0.74),
    (2, "T", "C"): (2.80, 0.26),
    (2, "C", "T"): (63.53, 28.60),
}
REDUCED = {"T": "channel", "C": "token"}


def variants(setting: Setting) -> list[Variant]:
    """The same groups of 32 and the same exact tail for all of them."""
    del setting
    return [
        Variant(f"{bits} bits, keys by {keys}, values by {values}", partial(_stored, bits, keys, values), columns(COLUMNS, scores))
        for (bits, keys, values), scores in PAPER.items()
    ]


def _stored(bits: int, keys: str, values: str) -> kvjax.Policy:
    codecs = [Affine(bits=bits, group=32, reduce=REDUCED[axis]) for axis in (keys, values)]
    tail = BlockFlush(128)
    return kvjax.Policy(encode=Stored(keys=codecs[0], values=codecs[1], window=Windows(keys=tail, values=tail)))


ABLATION = Ablation(
    title="KIVI: the axis of a group",
    source="arXiv 2402.02750, table 1 (Llama-2-13B)",
    variants=variants,
    budget=1.0,
    question="unseen",
    prompts=50,
    note="T: numbers of a token share a step and a minimum; C: numbers of a channel do. The newest tokens, at most 127, are exact.",
)

if __name__ == "__main__":
    main(__file__)
