"""KVCompose: each head keeps its own best tokens, as many as its layer wins with composites of all heads.

*KVCompose: Efficient Structured KV Cache Compression with Composite Tokens*, arXiv 2509.05165.
Stages: score WithHeadsMean(Reconstruction) · allocate Composites(lower), or AcrossModel(lower) · select TopK · after the prompt.
The prompt is read a second time on top of itself: `pre = kvjax.second_pass(lm, kvjax.prefill(lm, ids), policy)`, then compress.
Both must fit the model's context.
Differs: every layer keeps a slot a head at least; the k-th slots of a layer's heads, one composite, lie in the heads' own regions.

BibTeX:
    @article{akulov2025kvcompose,
      title={{KVCompose}: Efficient Structured {KV} Cache Compression with Composite Tokens},
      author={Akulov, Dmitry and Sana, Mohamed and De Domenico, Antonio and Si Salem, Tareq and Piovesan, Nicola and Ayed, Fadhel},
      journal={arXiv preprint arXiv:2509.05165},
      year={2025}
    }

Example:
    policy = kvjax.methods.kvcompose(budget=0.3)
    out = kvjax.generate(lm, ids, policy)
"""

from kvjax.allocate import AcrossModel, Composites
from kvjax.policy import Policy
from kvjax.prefill.repeat_context import RepeatedContext
from kvjax.score import GroupMean, Reconstruction, WithHeadsMean

#: One chunk, whatever the prompt.
WHOLE = 1 << 30


def kvcompose(budget: int | float = 0.3, structured: bool = True, lower: int = 1, value_norm: bool = False) -> Policy:
    """Keep what reading the prompt again looks at most, the same number of tokens in all heads of a layer.

    Args:
        budget: slots a head keeps on average over the layers, or a share of the prompt.
        structured: False lets every head compete for itself (no composites).
        lower: tokens that every layer, or head, keeps at least.   value_norm: whether scores are weighed by the size of the value.
    """
    again = RepeatedContext(name="read_again", chunk=WHOLE, system=0, quoted=0, first=(), further=())
    return Policy(
        score=WithHeadsMean(Reconstruction(repeated=again, heads=GroupMean()), value_norm=value_norm),
        allocate=Composites(lower=lower) if structured else AcrossModel(lower=lower),
        budget=budget,
    )
