"""KeepKV: evicted tokens are merged into their most similar kept one, which attracts attention as all it holds.

*KeepKV: Eliminating Output Perturbation in KV Cache Compression for Efficient LLMs Inference*, arXiv 2504.09936.
Stages: score RawMass(window) · select TopK(sinks, recent) · merge ByVotes(threshold) · every step.
Ranks by the last queries' unnormalised exponentials, votes left out, and merges, as released: a merged key is the weighted mean
alone (the paper rescales it so that its mass is what was removed); slots evicted together, as those of the prompt, are merged
together.
Differs: one decision for each KV head; logits are held inside ±80 where they are exponentiated; the last tokens and the queries are
numbers, in the release both a tenth of the prompt.

BibTeX:
    @article{tian2025keepkv,
      title={{KeepKV}: Eliminating Output Perturbation in {KV} Cache Compression for Efficient {LLMs} Inference},
      author={Tian, Yuxuan and Wang, Zihan and Peng, Yebo and Yuan, Aomufei and Wang, Zhiming and Yi, Bairen and Liu, Xin and
        Cui, Yong and Yang, Tong}, journal={arXiv:2504.09936}, year={2025}
    }
Example:
    >>> kvjax.methods.keepkv(budget=128, threshold=0.8).budget
    128
"""

from kvjax.merge import ByVotes
from kvjax.policy import Policy
from kvjax.schedule import Every
from kvjax.score import RawMass
from kvjax.select import TopK


def keepkv(
    budget: int | float = 0.2, threshold: float = 0.8, window: int = 8, newest: float = 1.2, sinks: int = 4, recent: int = 8
) -> Policy:
    """Keep the sinks, the last tokens and the most attended; merge what goes into the key most like its own.

    Args:
        threshold: cosine below which a token is dropped.   window: last queries whose exponentials rank tokens and weigh a merge.
        newest: what the last of these queries weighs in the ranking against the first.
    """
    return Policy(
        score=RawMass(window=window, newest=newest),
        select=TopK(sinks=sinks, recent=recent),
        merge=ByVotes(threshold=threshold),
        when=Every(1),
        budget=budget,
    )
