"""ThinK: key channels that recent queries hardly use are not stored.

*ThinK: Thinner Key Cache by Query-Driven Pruning*, ICLR 2025, arXiv 2407.21018, section 3.2 and algorithm 1.
Stages: encode Tiered(recent slots as they are, KeptChannels(ρ) for the rest) · nothing is evicted; any policy that evicts after the
prompt can take its `encode`.
A head's channels are ranked by u[c] = mean q_c² · mean k_c², over the last queries and all keys of the prompt that are not evicted;
the floor(d ρ) of smallest u are left out of every key but the last `recent` and those that follow. Values are whole. One softmax
covers both.
Differs: query heads of a KV head are averaged, as kvpress does (the release repeats keys and has a mask for each query head); kept
keys are narrower in memory, not zeroed.

BibTeX:
    @inproceedings{xu2025think, title={{ThinK}: Thinner Key Cache by Query-Driven Pruning}, author={Xu, Yuhui and Jie, Zhanming
      and Dong, Hanze and Wang, Lei and Lu, Xudong and Zhou, Aojun and Saha, Amrita and Xiong, Caiming and Sahoo, Doyen},
      booktitle={ICLR}, year={2025}}

Example:
    policy = kvjax.methods.think(pruned=0.5)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.codec import KeptChannels
from kvjax.encode import Stored, Tiered
from kvjax.policy import Policy
from kvjax.tiers import RecentFirst


def think(pruned: float = 0.4, recent: int = 32, window: int = 32) -> Policy:
    """Keep every token, and of the prompt's older keys the channels that matter.

    Args:
        pruned: ρ, share of key channels that are left out.
        recent: r, last slots of the prompt whose keys stay whole.
        window: last queries that channels are judged by.
    """
    stores = Stored(), Stored(keys=KeptChannels(pruned, window))
    return Policy(encode=Tiered(stores, rule=RecentFirst(recent)))
