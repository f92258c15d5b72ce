"""DBTrimKV: a trained gate tells how fast each token decays, and all heads of all layers share one budget.

*Make Each Token Count: Towards Improving Long-Context Performance with KV Cache Eviction*, arXiv 2605.09649.
Stages: score Retention(DeepRetentionGate) · allocate AcrossModel · select TopK(sinks, recent) · every `buffer` tokens, heads trade
slots.
Gates are learned by `kvjax train make_each_token_count` (`kvjax.train.learners.MakeEachTokenCount`) and kept as an artefact.
Differs: a head keeps one slot at least; the model is cut after the prompt and at every `buffer`-th token decoded, wherever it holds
more than its budget (the release: whenever it holds L·H·(budget + buffer) slots, the prompt's or others); between two evictions a
head takes no more than 64 slots above what it had. The floor of slots a head, the pooling within layers and the absolute threshold
of the release are not offered.

BibTeX:
    @misc{makeeachtokencount2026,
      title={Make Each Token Count: Towards Improving Long-Context Performance with {KV} Cache Eviction},
      author={Ngoc Bui and Hieu Trung Nguyen and Arman Cohan and Rex Ying},
      year={2026}, eprint={2605.09649}, archivePrefix={arXiv}}

Example:
    kind = kvjax.gates.DeepRetentionGate(heads=lm.decoder.heads)
    gate = kvjax.gates.init_gate(kind, jax.random.key(0), lm.decoder)
    policy = kvjax.methods.make_each_token_count(gate, budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

import jax
import numpy as np
from jaxtyping import PyTree

from kvjax.allocate import AcrossModel
from kvjax.artefacts.artefact import ArtefactLike, resolve
from kvjax.artefacts.weights import weights_of
from kvjax.evidence import GateValues
from kvjax.gates import DeepRetentionGate
from kvjax.policy import Policy
from kvjax.schedule import Every
from kvjax.score.retention import Retention
from kvjax.select import TopK

#: What a user brings beside the prompt.
REQUIRES = ("training",)


def make_each_token_count(
    gate: PyTree | None = None, budget: int | float = 512, buffer: int = 32, recent: int = 0, origin: str = "",
    *, sinks: int = 0, artefact: ArtefactLike | None = None,
) -> Policy:  # fmt: skip
    """Keep the tokens of which most is left in the whole model, after the prompt and every `buffer` tokens.

    Args:
        gate: weights of a `DeepRetentionGate`, each leaf [l, ...], in place of an artefact; "down" without that axis is shared.
        budget: mean slots of a KV head.   buffer: tokens between evictions.   recent: last tokens that always stay.
        origin: where given weights came from; made from them where none is given.
        sinks: first tokens that always stay in every head, none in the paper.
        artefact: an Artefact, or the folder of one; of the model that will be prefilled.
    """
    if gate is None:
        found = resolve(artefact, "make_each_token_count")
        gate, origin = weights_of(found), found.origin
    gate = _spread(gate)
    hidden, heads = gate["down"]["kernel"].shape[-2:]
    values = GateValues.of(DeepRetentionGate(heads=heads, hidden=hidden), gate, origin)
    return Policy(
        score=Retention(values),
        allocate=AcrossModel(),
        select=TopK(sinks=sinks, recent=recent),
        when=Every(buffer, reallocate=True),
        budget=budget,
    )


def _spread(gate: PyTree) -> PyTree:
    """The weights with a last projection for each layer, where one is shared by all."""
    if gate["down"]["kernel"].ndim == 3:
        return gate
    layers = gate["up"]["kernel"].shape[0]

    def spread(w):
        return np.broadcast_to(np.asarray(w), (layers, *w.shape))

    return {**gate, "down": jax.tree.map(spread, gate["down"])}
