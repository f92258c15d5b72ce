"""Q-Filters: keys against the one direction a head's queries share.

*Q-Filters: Leveraging QK Geometry for Efficient KV Cache Compression*, arXiv 2503.02812.
Stages: score QueryFilter(filters), or OwnQueryFilter · after the prompt.
Filters come from `kvjax.calibrate.q_filters`; without them the prompt's own queries give the direction. Every query head has one,
and a KV head the mean of its group's.
Differs: a prompt is cut once, when it has been read, as in kvpress; the authors' cache cuts at every step, the prompt's included,
before it is attended to, and always keeps the last `window_length` tokens. A direction's sign is that of the sum of its
projections, theirs that of most of them.

BibTeX:
    @misc{godey2025qfilters, title={Q-Filters: Leveraging QK Geometry for Efficient KV Cache Compression},
      author={Nathan Godey and others}, year={2025}, eprint={2503.02812}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.qfilters(budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from jaxtyping import PyTree

from kvjax.policy import Policy
from kvjax.score import OwnQueryFilter, QueryFilter


def qfilters(budget: int | float = 256, filters: PyTree = None, origin: str = "") -> Policy:
    """Keep the keys of largest -f · k; `origin` names the model and text the filters came from."""
    score = OwnQueryFilter() if filters is None else QueryFilter(filters=filters, origin=origin)
    return Policy(score=score, budget=budget)
