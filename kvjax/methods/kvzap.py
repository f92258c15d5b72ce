"""KVzap: tokens that a small map of their hidden states calls unimportant go once they are no longer recent.

*KVzap: Fast, Adaptive, and Faithful KV Cache Pruning*, arXiv 2601.07891.
Stages: score Gated(SurrogateGate) · allocate AllHeld · select AboveOrRecent(threshold, window, sinks) · at every step.
The map is learned from KVzip's scores (their logarithms), a query's relative to its own hidden state's norm, by `kvjax train kvzap`
(`kvjax.train.learners.KVzap`) and kept as an artefact; how many slots a head keeps is what the text asks for.
The paper and its release keep no first tokens for being first; but KVzip, whose scores are learned, keeps four whatever it says of
them, so that a map may know nothing of these: `sinks` keeps them.
Differs: slots are freed (the release masks them); decoded tokens are judged unless told otherwise (the release's press judges them
if told to). A prompt is read with full attention, as in the release.

BibTeX:
    @misc{jegou2026kvzap, title={KVzap: Fast, Adaptive, and Faithful KV Cache Pruning},
      author={Simon Jegou and Maximilian Jeblick}, year={2026}, eprint={2601.07891}, archivePrefix={arXiv}}

Example:
    kind = kvjax.gates.SurrogateGate(heads=lm.decoder.heads)
    gate = kvjax.gates.init_gate(kind, jax.random.key(0), lm.decoder)
    policy = kvjax.methods.kvzap(gate, threshold=0.0, window=32)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from jaxtyping import PyTree

from kvjax.allocate import AllHeld
from kvjax.artefacts.artefact import ArtefactLike, resolve
from kvjax.artefacts.weights import weights_of
from kvjax.evidence import GateValues
from kvjax.gates import SurrogateGate
from kvjax.policy import Policy
from kvjax.schedule import AfterPrefill, Every
from kvjax.score import Gated
from kvjax.select import AboveOrRecent

#: What a user brings beside the prompt.
REQUIRES = ("training",)


def kvzap(
    gate: PyTree | None = None, threshold: float = -4.0, window: int = 128, decoding: bool = True, origin: str = "",
    *, sinks: int = 0, artefact: ArtefactLike | None = None,
) -> Policy:  # fmt: skip
    """Keep the first `sinks` and the last `window` tokens, and those whose predicted score reaches the threshold.

    Args:
        gate: weights of a `SurrogateGate`, each leaf [l, ...], in place of an artefact; without "up" the linear map.
        threshold: in logarithms: -4 is a product of attention and relative norm of 0.018.
        window: last tokens that stay.   decoding: whether decoded tokens are judged, too, or the prompt's alone.
        origin: where given weights came from; made from them where none is given.
        sinks: first tokens that stay, none in the release.
        artefact: an Artefact, or the folder of one; of the model that will be prefilled.
    """
    if gate is None:
        found = resolve(artefact, "kvzap")
        gate, origin = weights_of(found), found.origin
    hidden = gate["up"]["kernel"].shape[-1] if "up" in gate else 0
    kind = SurrogateGate(heads=gate["down"]["kernel"].shape[-1], hidden=hidden)
    return Policy(
        score=Gated(GateValues.of(kind, gate, origin)),
        allocate=AllHeld(),
        select=AboveOrRecent(tau=threshold, recent=window, sinks=sinks),
        when=Every(1, grows=True) if decoding else AfterPrefill(),
    )
