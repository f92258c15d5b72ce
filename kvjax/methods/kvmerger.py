"""KVMerger: runs of neighbouring tokens with similar keys become one token each.

*Model Tells You Where to Merge: Adaptive KV Cache Merging for LLMs on Long-Context Tasks*, arXiv 2407.08454.
Stages: score NeighbourLikeness(AccumulatedAttention) · select Runs · merge GaussianRuns · after the prompt.
Differs: every head has as many runs as its budget has slots, cut at the lowest cosines (the paper's threshold is chosen per layer
to hit a budget); σ² is the mean squared distance to the pivot. Nearer the paper, which leaves the first two layers and the last
one whole: `.replace(allocate=WholeLayers())`.
BibTeX:
    @article{wang2024model,
      title={Model Tells You Where to Merge: Adaptive {KV} Cache Merging for {LLMs} on Long-Context Tasks},
      author={Wang, Zheng and Jin, Boxiao and Yu, Zhongzhi and Zhang, Minjia}, journal={arXiv:2407.08454}, year={2024}
    }
Example:
    >>> kvjax.methods.kvmerger(budget=0.5, recent_share=0.2).budget
    0.5
"""

from kvjax.merge import GaussianRuns
from kvjax.policy import Policy
from kvjax.score import NeighbourLikeness
from kvjax.select import Runs


def kvmerger(budget: int | float = 0.5, heavy_share: float = 0.25, recent_share: float = 0.25) -> Policy:
    """Keep the most attended and the last tokens by themselves; everything else lives on in runs, one slot a run.

    Args:
        budget: runs of a head.
        heavy_share, recent_share: shares of the budget for the most attended and for the last tokens; 2 · heavy_share +
            recent_share must be below 1.
    """
    return Policy(
        score=NeighbourLikeness(),
        select=Runs(heavy_share=heavy_share, recent_share=recent_share),
        merge=GaussianRuns(heavy_share=heavy_share, recent_share=recent_share),
        budget=budget,
    )
