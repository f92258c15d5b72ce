"""InfiniGen: keys and values in host memory; what a layer will look at is guessed from the input of the layer before, and fetched.

*InfiniGen: Efficient Generative Inference of Large Language Models with Dynamic KV Cache Management*, OSDI 2024, arXiv 2406.19707.
Stages: retrieve Speculated(skew, part, alpha, cap, skip_layers, home) · nothing is evicted.
A few columns of the prompt's keys stay on the device for the guess. The skew is calibrated once a model, by
`kvjax calibrate infinigen`.
Differs: a KV head of several query heads takes their maximum; columns are those of the prompt's queries, as in the release that is
timed (the one whose accuracy is told, with alpha = 5 for Llama, joins those of the keys, takes both from one short text for all
prompts, and holds every head's guesses against the first head's maximum); what was generated is on the device, and always read; the
host's pool has no limit.

BibTeX:
    @inproceedings{lee2024infinigen, title={InfiniGen: Efficient Generative Inference of Large Language Models with Dynamic KV Cache
      Management}, author={Lee, Wonbeom and Lee, Jungi and Seo, Junghwan and Sim, Jaewoong},
      booktitle={USENIX Symposium on Operating Systems Design and Implementation}, year={2024}, note={arXiv:2406.19707}}

Example:
    from kvjax.calibrate.skew import skew
    policy = kvjax.methods.infinigen(skew=skew(lm, texts), alpha=5.0)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

import numpy as np

from kvjax.artefacts.artefact import ArtefactLike, resolve
from kvjax.evidence.gate_values import origin_of
from kvjax.placement import OnDevice, OnHost
from kvjax.policy import Policy
from kvjax.retrieve import Speculated


def infinigen(
    skew: np.ndarray | None = None, part: float = 0.2, alpha: float = 5.0, cap: int | float = 0.2, home: OnDevice = OnHost(),
    origin: str = "", *, artefact: ArtefactLike | None = None, skip_layers: int = 2,
) -> Policy:  # fmt: skip
    """Keep everything on the host, fetch what a layer is expected to look at.

    Args:
        skew: float [L, H, d, d], orthogonal, for every KV head, from `kvjax.calibrate.skew`; None leaves columns as they are.
        part: columns of the keys that stay on the device, as a share of them.
        alpha: how far below the largest guess a token may be; 4 for OPT, 5 for Llama.
        cap: most tokens fetched for a KV head and step, an int, or the share of the prompt as a float in (0, 1].
        home: OnHost(), ByCallback(), or OnDevice() where there is no host to offload to.
        origin: which model and text the skew came from; made from its numbers where none is given.
        artefact: in place of `skew`: an Artefact, the path of one, or the name of a built-in one; of the model that will be
            prefilled.
        skip_layers: first layers that read everything.

    Raises:
        FileNotFoundError, ValueError: no artefact there, or one that is not InfiniGen's; a skew beside an artefact.
    """
    if artefact is not None:
        if skew is not None:
            raise ValueError("infinigen takes a skew or an artefact that has one, got both")
        found = resolve(artefact, "infinigen")
        skew, origin = found.tables["skew"], found.origin
    if skew is not None:
        origin = origin or origin_of(skew)
    guess = Speculated(skew=skew, part=part, alpha=alpha, cap=cap, skip_layers=skip_layers, home=home, origin=origin)
    return Policy(retrieve=guess)
