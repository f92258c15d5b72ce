"""Locret: trained heads guess the most attention that an answer will pay each token of the prompt.

*Locret: Enhancing Eviction in Long-Context LLM Inference with Trained Retaining Heads*, arXiv 2410.01805.
Stages: score Gated(RetainingGate) · select TopK(recent) · after the prompt.
Decoded tokens are not evicted. Scores are made when a token is read and travel with it.
Gates are learned by `kvjax train locret` (`kvjax.train.learners.Locret`) and kept as an artefact.
Differs: a prompt is read whole and cut once; the release reads pieces of 3,072 tokens and cuts after each, with the last 2,500
pinned but after the final piece. `pieces=True` is the policy for that: `kvjax.extend` piece by piece, `recent` the pinned tokens;
the last piece is read with `recent=100`, and decoding goes on with the policy without `pieces`, which evicts no more.
The last `recent` tokens count inside the budget; the release reads them after the last cut, on top of it.
Keys keep their true positions (the release, for Llama and for Phi-3, rotates those that stay anew, side by side).

BibTeX:
    @misc{huang2024locret,
      title={Locret: Enhancing Eviction in Long-Context {LLM} Inference with Trained Retaining Heads},
      author={Yuxiang Huang and others}, year={2024}, eprint={2410.01805}, archivePrefix={arXiv}}

Example:
    kind = kvjax.gates.RetainingGate(heads=lm.decoder.heads)
    gate = kvjax.gates.init_gate(kind, jax.random.key(0), lm.decoder)
    policy = kvjax.methods.locret(gate, budget=0.25, recent=16)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from jaxtyping import PyTree

from kvjax.artefacts.artefact import ArtefactLike, resolve
from kvjax.artefacts.weights import weights_of
from kvjax.evidence import GateValues
from kvjax.gates import RetainingGate
from kvjax.policy import Policy
from kvjax.schedule import AfterPrefill, Every
from kvjax.score import Gated
from kvjax.select import TopK

#: What a user brings beside the prompt.
REQUIRES = ("training",)


def locret(
    gate: PyTree | None = None, budget: int | float = 6000, recent: int = 100, pieces: bool = False, origin: str = "",
    *, artefact: ArtefactLike | None = None,
) -> Policy:  # fmt: skip
    """Keep the last `recent` tokens of the prompt and those an answer is expected to look at.

    Args:
        gate: weights of a `RetainingGate`, each leaf [l, ...], in place of an artefact (`init_gate` makes untrained ones).
        recent: last tokens that always stay.   pieces: whether what is read after the first piece is cut to the budget, too.
        origin: where given weights came from; made from them where none is given.
        artefact: an Artefact, or the folder of one; of the model that will be prefilled.
    """
    if gate is None:
        found = resolve(artefact, "locret")
        gate, origin = weights_of(found), found.origin
    hidden, heads = gate["down"]["kernel"].shape[-2:]
    values = GateValues.of(RetainingGate(heads=heads, hidden=hidden), gate, origin)
    when = Every(1) if pieces else AfterPrefill()
    return Policy(score=Gated(values), select=TopK(recent=recent), when=when, budget=budget)
