"""LESS: what an eviction drops is absorbed into a small state that queries go on reading, by maps learned layer by layer.

*Get More with LESS: Synthesizing Recurrence with KV Cache Compression*, ICML 2024, arXiv 2402.09398.
Stages: score AccumulatedAttention · select TopK(recent_share) · merge Absorbed(maps) · retrieve WithAbsorbed(maps) · every step.
The host is H2O; another is `.replace(score=..., select=...)`, such as StreamingLLM's. The state is r d + r numbers a KV head in
float32, counted in the cache's bytes.
Maps are learned by `kvjax train less` (`kvjax.train.learners.LESS`) and kept as an artefact.
Differs: the state and the map of keys are a KV head's own, the map of queries a query head's; the paper's models have no groups.
A share is of the prompt; the release's slots are shares of the model's context, as many for every prompt. Where nothing was
absorbed nothing is added (the release adds a mass of 1e-6).

BibTeX:
    @inproceedings{dong2024less, title={Get More with {LESS}: Synthesizing Recurrence with {KV} Cache Compression},
      author={Harry Dong and Xinyu Yang and Zhenyu Zhang and Zhangyang Wang and Yuejie Chi and Beidi Chen},
      booktitle={ICML}, year={2024}}

Example:
    maps = kvjax.gates.init_side_maps(jax.random.key(0), lm.decoder, rank=8, hidden=64)
    policy = kvjax.methods.less(maps, budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from jaxtyping import PyTree

from kvjax.artefacts.artefact import ArtefactLike, resolve
from kvjax.artefacts.weights import weights_of
from kvjax.merge import Absorbed
from kvjax.policy import Policy
from kvjax.retrieve import WithAbsorbed
from kvjax.schedule import Every
from kvjax.score import AccumulatedAttention
from kvjax.select import TopK

#: What a user brings beside the prompt.
REQUIRES = ("training",)


def less(
    maps: PyTree | None = None, budget: int | float = 0.05, recent_share: float = 0.5, origin: str = "",
    *, artefact: ArtefactLike | None = None,
) -> Policy:  # fmt: skip
    """Keep what H2O keeps, and absorb the rest, after the prompt and at every step.

    Args:
        maps: weights, each leaf [l, ...], in place of an artefact (`kvjax.gates.init_side_maps` makes untrained ones).
        recent_share: share of the budget for the last tokens.
        origin: where given weights came from; made from them where none is given.
        artefact: an Artefact, or the folder of one; of the model that will be prefilled.
    """
    if maps is None:
        found = resolve(artefact, "less")
        maps, origin = weights_of(found), found.origin
    return Policy(
        score=AccumulatedAttention(),
        select=TopK(recent_share=recent_share),
        merge=Absorbed.of(maps, origin),
        retrieve=WithAbsorbed.of(maps, origin),
        when=Every(1),
        budget=budget,
    )
