"""Attention Matching: the keys that stay get biases and new values, so that reference queries are answered as by all of them.

*Fast KV Compaction via Attention Matching*, arXiv 2602.16284.
Stages: score ReferenceAttention(queries), or Pursuit(queries) · select TopK(sinks, recent) · merge MatchedAttention(queries)
· after the prompt.
Reference queries are the prompt's last ones, or those of any text that is read behind it: with
`queries=Probed(WindowQueries(m))` run `pre = kvjax.probe(lm, pre, tokens, {WindowQueries(m)})` first.
Differs: layers are compacted by queries of the whole model (the release can collect a layer's queries with the layers before it
compacted); every head keeps the same number unless an allocator says otherwise (the release reads shares from a file); pursuit has
no progressive schedule and drops no key of small weight.
BibTeX:
    @article{zweiger2026fast,
      title={Fast {KV} Compaction via Attention Matching},
      author={Zweiger, Adam and Fu, Xinghong and Guo, Han and Kim, Yoon}, journal={arXiv:2602.16284}, year={2026}
    }
Example:
    >>> kvjax.methods.attention_matching(budget=0.1, pursuit=64).budget
    0.1
"""

import math

from kvjax.evidence import Need, WindowQueries
from kvjax.merge import MatchedAttention
from kvjax.policy import Policy
from kvjax.score import Pursuit, ReferenceAttention
from kvjax.score.reference_attention import RootMeanSquare
from kvjax.select import TopK
from kvjax.types import Function

#: How the release fits biases after a pursuit.
OF_PURSUIT = MatchedAttention(low=1e-12, high=math.e**7, steps=0)


def attention_matching(
    budget: int | float = 0.1, queries: Need = WindowQueries(512), share: Function = RootMeanSquare(),
    pursuit: int = 0, steps: int | None = None,
    direct: bool = False, ridge: float = 0.0, sinks: int = 0, recent: int = 0,
) -> Policy:  # fmt: skip
    """Keep the keys that reference queries attend to most, fit a bias to each, then values.

    Args:
        queries: a need whose evidence is queries [b, h, g, m, d].
        share: of a key: RootMeanSquare(), MeanShare() or LargestShare().
        pursuit: keys chosen by orthogonal matching pursuit of the mass instead; 0 for none. At least the budget.
        steps: projected-gradient steps of the bias fit; None: two, none after a pursuit, as released.
        direct: whether values stay as they are.   ridge: of the value fit.

    Biases lie in [-3, 3]; of a pursuit they end at 7, and a key may weigh nothing (10⁻¹²).
    """
    if pursuit:
        score, fit = Pursuit(queries=queries, most=pursuit), OF_PURSUIT
    else:
        score, fit = ReferenceAttention(queries=queries, share=share), MatchedAttention()
    fit = fit if steps is None else fit.replace(steps=steps)
    merge = fit.replace(queries=queries, direct=direct, ridge=ridge)
    return Policy(score=score, select=TopK(sinks=sinks, recent=recent), merge=merge, budget=budget)
