"""Attention-Gate: a small attention in front of each layer's own reads the prompt and flags the tokens that each head keeps.

*In-context KV-Cache Eviction for LLMs via Attention-Gate*, arXiv 2410.12876.
Stages: score AttentionGated(AttentionGate) · allocate AllHeld · select AboveOrRecent(threshold, 1, sinks=1) · after the prompt.
How many slots a head keeps is what its gate decides. A head's first and last token stay, whatever the gate says; decoded tokens are
kept.
Gates are learned by `kvjax train attention_gate` (`kvjax.train.learners.AttentionGate`) and kept as an artefact.
Differs: a prompt is read with full attention and cut when it has been read (the paper hides what is flagged from the prompt's own
queries, too); one gate for a KV head, of which the paper, on models without groups, says nothing. `causal=False` is the paper's
global context; a gate that was trained by next tokens read what stands before a token alone, which is the default.

BibTeX:
    @misc{zeng2024attentiongate, title={In-context {KV}-Cache Eviction for {LLMs} via Attention-Gate},
      author={Zihao Zeng and others}, year={2024}, eprint={2410.12876}, archivePrefix={arXiv}}

Example:
    kind = kvjax.gates.AttentionGate(heads=lm.decoder.heads)
    gate = kvjax.gates.init_gate(kind, jax.random.key(0), lm.decoder)
    policy = kvjax.methods.attention_gate(gate, threshold=0.5)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

import numpy as np
from jaxtyping import PyTree

from kvjax.allocate import AllHeld
from kvjax.artefacts.artefact import ArtefactLike, resolve
from kvjax.artefacts.weights import weights_of
from kvjax.evidence import GateAttention
from kvjax.gates import AttentionGate
from kvjax.policy import Policy
from kvjax.score import AttentionGated
from kvjax.select import AboveOrRecent

#: What a user brings beside the prompt.
REQUIRES = ("training",)


def attention_gate(
    gate: PyTree | None = None, threshold: float | None = None, parts: int = 4, causal: bool = True, sinks: int | None = None,
    recent: int = 1, origin: str = "", *, artefact: ArtefactLike | None = None,
) -> Policy:  # fmt: skip
    """Keep the tokens of the prompt that the gate is surer of than the threshold.

    Args:
        gate: weights of an `AttentionGate`, each leaf [l, ...], in place of an artefact (`init_gate` makes untrained ones).
        threshold: what stays has p > threshold; None: what an artefact's gate was trained with, 0.5 for one that is given.
        parts: heads of the attention of a gate that is given; an artefact tells its own.
        causal: whether it reads what stands before a token alone.
        sinks, recent: first and last tokens of the prompt that always stay; sinks of None: as trained, 1 for a gate that is given.
        origin: where given weights came from; made from them where none is given.
        artefact: an Artefact, or the folder of one; of the model that will be prefilled.
    """
    trained = {}
    if gate is None:
        found = resolve(artefact, "attention_gate")
        gate, origin, trained = weights_of(found), found.origin, found.settings
    parts = int(trained.get("parts", parts))
    threshold = trained.get("threshold", 0.5) if threshold is None else threshold
    sinks = trained.get("sinks", 1) if sinks is None else sinks
    size, heads = gate["out"]["kernel"].shape[-2:]
    if size % parts:
        raise ValueError(f"the gate's attention is {size} wide, which {parts} parts do not share evenly: give the parts it has")
    values = GateAttention.of(AttentionGate(heads=heads, parts=parts, width=size // parts, causal=causal), gate, origin)
    least = float(np.nextafter(np.float32(threshold), np.float32(np.inf)))  # p > threshold
    return Policy(
        score=AttentionGated(values), allocate=AllHeld(), select=AboveOrRecent(tau=least, recent=recent, sinks=sinks)
    )
