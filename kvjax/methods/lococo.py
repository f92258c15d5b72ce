"""LoCoCo: half of a cache of fixed size are heavy hitters, the other half mixtures of everything else by a learned convolution.

*LoCoCo: Dropping In Convolutions for Long Context Compression*, ICML 2024, arXiv 2406.05317.
Stages: score StepAttention · select TopK(recent) · merge Convolved(weights) · when a head holds `buffer` + 1 slots more
than its budget.
Weights are learned by `kvjax train lococo` (`kvjax.train.learners.LoCoCo`) and kept as an artefact.
Differs: a prompt is read whole and merged once (the release reads chunks of 512 tokens and merges before each, and leaves a prompt
of up to M + buffer tokens alone); one convolution for KV heads.
BibTeX:
    @inproceedings{cai2024lococo,
      title={{LoCoCo}: Dropping In Convolutions for Long Context Compression},
      author={Cai, Ruisi and Tian, Yuandong and Wang, Zhangyang and Chen, Beidi}, booktitle={ICML}, year={2024}
    }
Example:
    >>> import jax
    >>> from kvjax.merge import init_convolution
    >>> weights = init_convolution(jax.random.key(0), layers=30, slots=256, head_dim=64)
    >>> kvjax.methods.lococo(weights, budget=512).budget
    512
"""

from jaxtyping import PyTree

from kvjax.artefacts.artefact import ArtefactLike, resolve
from kvjax.artefacts.weights import weights_of
from kvjax.merge import Convolved
from kvjax.policy import Policy
from kvjax.schedule import WhenFull
from kvjax.score import StepAttention
from kvjax.select import TopK

#: What a user brings beside the prompt.
REQUIRES = ("training",)


def lococo(
    weights: PyTree | None = None, budget: int | float = 512, buffer: int = 16, recent: int = 0, origin: str = "",
    *, artefact: ArtefactLike | None = None,
) -> Policy:  # fmt: skip
    """Keep the best tokens of the last reading; M_c of the slots, as many as the weights have rows, become mixtures of the rest.

    Args:
        weights: kernel [L, M_c, 2 d, w], bias [L, M_c], gamma [L], in place of an artefact (`kvjax.merge.init_convolution` makes
            untrained ones).
        buffer: slots above the budget that a head fills; one more, and it is cut back.   recent: last tokens that stay as they are.
        origin: where given weights came from; made from them where none is given.
        artefact: an Artefact, or the folder of one; of the model that will be prefilled.
    """
    if weights is None:
        found = resolve(artefact, "lococo")
        weights, origin = weights_of(found), found.origin
    return Policy(
        score=StepAttention(),
        select=TopK(recent=recent),
        merge=Convolved.of(weights, recent=recent, origin=origin),
        when=WhenFull(buffer + 1),
        budget=budget,
    )
