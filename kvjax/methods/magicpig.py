"""MagicPIG: prompts live in host memory, and attention there is sampled, by hashes of keys that meet the query's.

*MagicPIG: LSH Sampling for Efficient LLM Generation*, ICLR 2025, arXiv 2410.16179, section 4.
Stages: retrieve SampledTokens(bits, tables, seed, sinks, local, dense) · nothing is evicted.
A query's hashes are computed on the device; the host compares them with those of the prompt's keys, and attends to the keys that
meet it in two tables or more, each weighted by one over the chance of that. Sinks, the last tokens of the prompt and what was
generated are on the device and always read.
Differs: one set of random planes for all heads and layers, where the release draws one for each KV head, and anew after every
sixteen layers; hashes are compared one by one, no tables are built: what is sampled is the same.

BibTeX:
    @inproceedings{chen2025magicpig, title={{MagicPIG}: {LSH} Sampling for Efficient {LLM} Generation},
      author={Chen, Zhuoming and Sadhukhan, Ranajoy and Ye, Zihao and Zhou, Yang and Zhang, Jianyu and Nolte, Niklas and
      Tian, Yuandong and Douze, Matthijs and Bottou, Leon and Jia, Zhihao and Chen, Beidi},
      booktitle={International Conference on Learning Representations}, year={2025}, note={arXiv:2410.16179}}

Example:
    policy = kvjax.methods.magicpig(dense=(0,))
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from collections.abc import Sequence

from kvjax.policy import Policy
from kvjax.retrieve import SampledTokens


def magicpig(
    bits: int = 10, tables: int = 150, seed: int = 0, sinks: int = 4, local: int = 64, dense: Sequence[int] = (0, 16, 32, 48)
) -> Policy:
    """Keep everything, attend to the tokens whose hashes meet the query's.

    Args:
        bits: of a hash, 1 to 16: more sample fewer tokens.   tables: hashes a key, at least 2: more sample more.
        seed: of the random planes.
        sinks: first tokens that stay on the device.   local: last tokens of the prompt that do.
        dense: layers that stay whole, on the device.
    """
    return Policy(
        retrieve=SampledTokens(bits=bits, tables=tables, seed=seed, sinks=sinks, local=local, dense=tuple(dense))
    )
