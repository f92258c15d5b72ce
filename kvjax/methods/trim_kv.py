"""TRIM-KV: a trained gate tells how fast each token decays, and a full head drops what has decayed most.

*Cache What Lasts: Token Retention for Memory-Bounded KV Cache in LLMs*, arXiv 2512.03324, section 4.
Stages: score Retention(gate) · select TopK(sinks, recent) · when a head holds `buffer` slots more than its budget.
Attention knows no decay when it is served; training adds (t - i) log β_i to its logits (`kvjax.train.forward`).
Gates are learned by `kvjax train trim_kv` (`kvjax.train.learners.TrimKV`) and kept as an artefact.
Differs: a prompt longer than the budget is cut to it at once; the release lets it stand below budget + buffer tokens.

BibTeX:
    @misc{bui2025trimkv, title={Cache What Lasts: Token Retention for Memory-Bounded KV Cache in LLMs},
      author={Ngoc Bui and others}, year={2025}, eprint={2512.03324}, archivePrefix={arXiv}}

Example:
    kind = kvjax.gates.RetentionGate(heads=lm.decoder.heads)
    gate = kvjax.gates.init_gate(kind, jax.random.key(0), lm.decoder)
    policy = kvjax.methods.trim_kv(gate, budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from jaxtyping import PyTree

from kvjax.artefacts.artefact import ArtefactLike, resolve
from kvjax.artefacts.weights import weights_of
from kvjax.evidence import GateValues
from kvjax.gates import RetentionGate
from kvjax.policy import Policy
from kvjax.schedule import WhenFull
from kvjax.score.retention import Retention
from kvjax.select import TopK

#: What a user brings beside the prompt.
REQUIRES = ("training",)


def trim_kv(
    gate: PyTree | None = None, budget: int | float = 512, buffer: int = 128, recent: int = 0, origin: str = "",
    *, sinks: int = 0, artefact: ArtefactLike | None = None,
) -> Policy:  # fmt: skip
    """Keep the tokens of which most is left, after the prompt and whenever a head is full.

    Args:
        gate: weights of a `RetentionGate`, each leaf [l, ...], in place of an artefact (`init_gate` makes untrained ones).
        buffer: slots above the budget that a head fills before it is cut back.   recent: last tokens that always stay.
        origin: where given weights came from; made from them where none is given.
        sinks: first tokens that always stay, none in the paper; a gate of a short training may not know that they matter.
        artefact: an Artefact, or the folder of one; of the model that will be prefilled.
    """
    if gate is None:
        found = resolve(artefact, "trim_kv")
        gate, origin = weights_of(found), found.origin
    hidden, heads = gate["down"]["kernel"].shape[-2:]
    values = GateValues.of(RetentionGate(heads=heads, hidden=hidden), gate, origin)
    return Policy(score=Retention(values), select=TopK(sinks=sinks, recent=recent), when=WhenFull(buffer), budget=budget)
