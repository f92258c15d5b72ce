"""DuoAttention: heads that keep everything, and heads that keep sinks and recent tokens.

*DuoAttention: Efficient Long-Context LLM Inference with Retrieval and Streaming Heads*, arXiv 2410.10819, sections 2.3 and 2.4.
Stages: score Recency · allocate FullHeads(pattern) · select TopK(sinks, recent) · every step.
Which heads are full is learned by `kvjax train duo_attention` (`kvjax.train.learners.DuoAttention`) and kept as an artefact.
Differs: a prompt is read whole, every head attending to all of it; the release can feed it in pieces, and a streaming head then
sees a cut past. Ties are broken by position, not by noise.

BibTeX:
    @misc{xiao2024duoattention, title={DuoAttention: Efficient Long-Context LLM Inference with Retrieval and Streaming Heads},
      author={Guangxuan Xiao and others}, year={2024}, eprint={2410.10819}, archivePrefix={arXiv}}

Example:
    pattern = np.arange(lm.decoder.layers * lm.decoder.heads).reshape(lm.decoder.layers, -1) % 2 == 0
    policy = kvjax.methods.duo_attention(pattern)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

import numpy as np
from jaxtyping import Bool

from kvjax.allocate.full_heads import FullHeads, full_heads
from kvjax.artefacts.artefact import Artefact, ArtefactLike, resolve
from kvjax.policy import Policy
from kvjax.schedule import Every
from kvjax.score import Recency
from kvjax.select import TopK
from kvjax.types import Number

#: What a user brings beside the prompt.
REQUIRES = ("training",)


def duo_attention(
    pattern: Number = None, sinks: int | None = None, recent: int | None = None, *, sparsity: float = 0.5,
    artefact: ArtefactLike | None = None,
) -> Policy:  # fmt: skip
    """Keep all in full heads; in the others the first `sinks` and the last `recent` tokens, after the prompt and at every step.

    Args:
        pattern: bool or 0-1 [L, H], true for full heads; in place of an artefact.
        sinks, recent: slots of a streaming head, positions unchanged; None: what an artefact's pattern was trained with, the
            release's 64 and 256 for one that is given.
        sparsity: share of heads that stream, those of the lowest α; of equal ones the later stream.
        artefact: an Artefact, or the folder of one; of the model that will be prefilled.

    A decode step sees sinks + recent + 1 keys in a streaming head, its own included.
    """
    trained = {}
    if pattern is None:
        found = resolve(artefact, "duo_attention")
        pattern, trained = learned(found, sparsity), found.settings
    sinks = trained.get("sinks", 64) if sinks is None else sinks
    recent = trained.get("recent", 256) if recent is None else recent
    if min(sinks, recent) < 0 or sinks + recent < 1:
        raise ValueError(f"sinks and recent are numbers of slots, at least one together; got {sinks} and {recent}")
    allocate = FullHeads.of(pattern, sinks + recent)
    return Policy(score=Recency(), allocate=allocate, select=TopK(sinks=sinks, recent=recent), when=Every(1))


def learned(artefact: Artefact, sparsity: float) -> Bool[np.ndarray, "l h"]:
    """The pattern of an artefact's α."""
    alpha = artefact.tables["alpha"].astype(np.float64)
    earlier_first = np.linspace(1e-6, 0, alpha.size).reshape(alpha.shape)
    return full_heads(alpha, sparsity, earlier_first)
