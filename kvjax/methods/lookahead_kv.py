"""LookaheadKV: what learned tokens that stand for the answer look at, without writing one.

*LookaheadKV: Fast and Accurate KV Cache Eviction by Glimpsing into the Future without Generation*, ICLR 2026, arXiv 2603.10899.
Stages: score LookaheadAttention(LookaheadTokens, pool) · select TopK(recent) · after the prompt.
The prompt is read by them in a second pass: `pre = kvjax.second_pass(lm, kvjax.prefill(lm, ids), policy)`, then compress. They are
read through a low-rank update of every linear map, which the prompt never meets.
They are learned by `kvjax train lookahead_kv` (`kvjax.train.learners.LookaheadKV`) and kept as an artefact.
Differs: a second pass over frozen keys and values, which is the same as tokens appended to the prompt; a layer's weights with their
update are summed and rounded to the model's dtype once a layer. The pooling (SnapKV's), the mean over the query heads of a KV head
and that no last tokens are held back (`recent`) are readings, not checked against the authors' code (SamsungLabs/LookaheadKV).

BibTeX:
    @inproceedings{lookaheadkv2026, author={Jinwoo Ahn and others}, booktitle={ICLR}, year={2026},
      title={{LookaheadKV}: Fast and Accurate {KV} Cache Eviction by Glimpsing into the Future without Generation}}

Example:
    weights = kvjax.gates.init_soft_tokens(lm, jax.random.key(0), tokens=8)
    policy = kvjax.methods.lookahead_kv(weights, budget=0.25)
    pre = kvjax.second_pass(lm, kvjax.prefill(lm, ids), policy)
    out = kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=64)
"""

from jaxtyping import PyTree

from kvjax.artefacts.artefact import ArtefactLike, resolve
from kvjax.artefacts.weights import weights_of
from kvjax.policy import Policy
from kvjax.prefill.lookahead import LookaheadTokens
from kvjax.score.lookahead import LookaheadAttention
from kvjax.score.pool import AvgPool
from kvjax.select import TopK
from kvjax.types import Function

#: What a user brings beside the prompt.
REQUIRES = ("training", "second pass")


def lookahead_kv(
    weights: PyTree | None = None, budget: int | float = 256, alpha: float | None = None, pool: Function = AvgPool(5),
    recent: int = 0, origin: str = "", *, artefact: ArtefactLike | None = None,
) -> Policy:  # fmt: skip
    """Keep what the learned tokens attend to most, smoothed over neighbours, and the last `recent` tokens where asked.

    Args:
        weights: {"tokens": [p e], "layers": {...}} in place of an artefact (`kvjax.gates.init_soft_tokens` makes untrained ones).
        alpha: scale of the low-rank updates, alpha / r; None: an artefact's own, 32 for given weights.
        recent: last tokens of the prompt that always stay.
        origin: where given weights came from; made from them where none is given.
        artefact: an Artefact, or the folder of one; of the model that will be prefilled.
    """
    if weights is None:
        found = resolve(artefact, "lookahead_kv")
        weights, origin = weights_of(found), found.origin
        alpha = found.settings.get("alpha", alpha) if alpha is None else alpha
    tokens = LookaheadTokens.of(weights, 32.0 if alpha is None else alpha, origin)
    return Policy(score=LookaheadAttention(tokens, pool), select=TopK(recent=recent), budget=budget)
