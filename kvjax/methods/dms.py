"""DMS: each token decides whether the one before it goes, and what was decided is done `window` tokens later.

*Inference-Time Hyper-Scaling with KV Cache Compression*, NeurIPS 2025, arXiv 2506.05345.
Stages: score JudgedByNext(EvictionGate) · allocate AllHeld · select AboveOrRecent(-threshold, window) · at every step.
A query sees an evicted token while it is at most `window` tokens away, as in training.
How many slots a head keeps is what its gate decides.
Gates are learned by `kvjax train dms` (`kvjax.train.learners.DMS`) and kept as an artefact.
Differs: a prompt is read with full attention and cut when it has been read, as kvpress does; the release hides evicted tokens in
the prompt, too. A freed slot is closed (the release's paged cache writes a new token into it). The gate has weights of its own; the
release can also borrow a query's last channel.

BibTeX:
    @inproceedings{lancucki2025dms, title={Inference-Time Hyper-Scaling with {KV} Cache Compression},
      author={Adrian Lancucki and Konrad Staniszewski and Piotr Nawrot and Edoardo M. Ponti}, booktitle={NeurIPS}, year={2025}}

Example:
    kind = kvjax.gates.EvictionGate(heads=lm.decoder.heads)
    gate = kvjax.gates.init_gate(kind, jax.random.key(0), lm.decoder)
    policy = kvjax.methods.dms(gate, window=32)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from jaxtyping import PyTree

from kvjax.allocate import AllHeld
from kvjax.artefacts.artefact import ArtefactLike, resolve
from kvjax.artefacts.weights import weights_of
from kvjax.evidence import GateValues
from kvjax.gates import EvictionGate
from kvjax.policy import Policy
from kvjax.schedule import AfterPrefill, Every
from kvjax.score import JudgedByNext
from kvjax.select import AboveOrRecent

#: What a user brings beside the prompt.
REQUIRES = ("training",)


def dms(
    gate: PyTree | None = None, window: int | None = None, threshold: float = 0.0, decoding: bool = True, origin: str = "",
    *, artefact: ArtefactLike | None = None,
) -> Policy:  # fmt: skip
    """Evict what its successor wants gone, once it is more than `window` tokens old.

    Args:
        gate: weights of an `EvictionGate`, each leaf [l, ...], in place of an artefact (`init_gate` makes untrained ones).
        window: tokens between a decision and its execution; None: what an artefact's gate was trained with, the release's 512 for
            given weights.
        threshold: logits above it evict; 0 is a chance of a half.
        decoding: whether decoded tokens are evicted, too, or the prompt's alone.
        origin: where given weights came from; made from them where none is given.
        artefact: an Artefact, or the folder of one; of the model that will be prefilled.
    """
    if gate is None:
        found = resolve(artefact, "dms")
        gate, origin = weights_of(found), found.origin
        window = found.settings.get("window", window) if window is None else window
    values = GateValues.of(EvictionGate(heads=gate["alpha"]["kernel"].shape[-1]), gate, origin)
    return Policy(
        score=JudgedByNext(values),
        allocate=AllHeld(),
        select=AboveOrRecent(tau=-threshold, recent=512 if window is None else window),
        when=Every(1, grows=True) if decoding else AfterPrefill(),
    )
