"""DMC: each head appends a token, or accumulates it into its last slot, as a neuron of the token's key says.

*Dynamic Memory Compression: Retrofitting LLMs for Accelerated Inference*, ICML 2024, arXiv 2403.09636.
Stages: score JudgedByNext(KeyNeuron) · allocate AllHeld · select AboveOrRecent(-offset, 1) · merge RunningMean(offset) · encode
Accumulating · as tokens come.
The weights are the model's: one that was trained to decide by the last coordinate of its keys and queries, which attention then
does not read. `kvjax train dmc` (`kvjax.train.learners.DMC`) makes them as an artefact, and `models.load("MODEL+FOLDER")` or
`kvjax.artefacts.retrofitted(lm, artefact)` puts them in place.
How many slots a head holds is what it decides. A prompt read for this policy alone (`needs=policy`) is read under the mask of
training (`MergedAttention`).
Differs: a slot accumulates all of its tokens (the release counts the last 12 at most); a prompt that was read for other policies,
too, is read with full attention and accumulated when it has been read.

BibTeX:
    @inproceedings{nawrot2024dmc, title={Dynamic Memory Compression: Retrofitting {LLMs} for Accelerated Inference},
      author={Piotr Nawrot and Adrian Lancucki and Marcin Chochowski and David Tarjan and Edoardo M. Ponti},
      booktitle={ICML}, year={2024}}

Example:
    policy = kvjax.methods.dmc(offset=5.0)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.allocate import AllHeld
from kvjax.artefacts.artefact import ArtefactLike, resolve
from kvjax.encode import Accumulating
from kvjax.evidence import GateValues
from kvjax.gates import KeyNeuron
from kvjax.merge import RunningMean
from kvjax.policy import Policy
from kvjax.prefill import MergedAttention
from kvjax.score import JudgedByNext
from kvjax.select import AboveOrRecent

#: What a user brings beside the prompt.
REQUIRES = ("training",)


def dmc(offset: float = 5.0, *, artefact: ArtefactLike | None = None) -> Policy:
    """Append or accumulate, token by token and head by head.

    Args:
        offset: what is taken from the neuron that decides to merge and added to that which weighs, as the model was trained with.
        artefact: an Artefact, or the folder of one, which tells its own offset; the one the model was retrofitted with. Without
            one the policy is served on any model, and is only a ranking on those that were never trained for it.

    Raises (from `check` and `kvjax.prefill`): ValueError for a model that holds other weights than the artefact's.
    """
    origin = ""
    if artefact is not None:
        found = resolve(artefact, "dmc")
        offset, origin = float(found.settings["offset"]), found.origin
    return Policy(
        score=JudgedByNext(GateValues.of(KeyNeuron(), {}, origin)),
        allocate=AllHeld(),
        select=AboveOrRecent(tau=-float(offset), recent=1),
        merge=RunningMean(float(offset)),
        encode=Accumulating(offset=float(offset)),
        attention=MergedAttention(float(offset)),
    )
