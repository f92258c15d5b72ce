"""PyramidInfer: after each layer the tokens of the prompt that the last ones look at least leave all later layers.

*PyramidInfer: Pyramid KV Cache Compression for High-throughput LLM Inference*, arXiv 2405.12532.
Stages: score LateAttention(recent, last) · allocate CosineDecay(p) · select GroupShares(sinks, every) · decoded tokens in groups.
The prompt is compressed as it is read, `kvjax.prefill(lm, ids, streaming=policy)`: later layers compute the tokens that are left.
Differs: a group of decoded tokens is judged by the 1 + R rows that follow it, which the release has in a buffer at that time; here
each slot keeps their sum. The release is its file for transformers 4.31; that for 4.46 compares tokens seen with slots held, so
that deep layers cut the 16 slots before the last 1 + R at every step, from the first on, until little else is left. What a layer
cuts of the prompt leaves that layer's cache, too; the release caches all that entered the layer and cuts what goes on (of 1,000
tokens, 4 layers at p = 0.9 hold 799, 787, 747 and 683 of the context here, 799, 799, 787 and 747 there). R is the prompt's
throughout; the release takes its share of layer 0's cache anew at every step. Groups begin with the first decoded token; the
release's first is the prompt's last token and 15 decoded ones.

BibTeX:
    @inproceedings{yang2024pyramidinfer,
      title={PyramidInfer: Pyramid {KV} Cache Compression for High-throughput {LLM} Inference},
      author={Yang, Dongjie and Han, Xiaodong and Gao, Yan and Hu, Yao and Zhang, Shilin and Zhao, Hai},
      booktitle={Findings of the Association for Computational Linguistics: ACL 2024},
      year={2024}
    }

Example:
    policy = kvjax.methods.pyramid_infer(p=0.8)
    cache = kvjax.prefill(lm, ids, streaming=policy)
    out = kvjax.decode(lm, cache, policy)
"""

from kvjax.allocate import CosineDecay
from kvjax.evidence import LateRows
from kvjax.policy import Policy
from kvjax.schedule import Every
from kvjax.score import LateAttention
from kvjax.select import GroupShares


def pyramid_infer(
    p: float = 0.9, recent: float = 0.2, sinks: int = 4, least: int = 64, interval: int = 1, last: float = 1.2, every: int = 16,
    factor: float = 0.9, decode_p: float = 0.1, leave: bool = True,
) -> Policy:  # fmt: skip
    """Keep of each layer's tokens what its last rows attend to most; no budget is read.

    Args:
        p: ratio of the context that the deepest layer keeps of the one before (the release: 0.9, and 0.8 for a model of 13B).
        recent: part of the prompt, its end, that always stays and whose rows judge.   sinks: first tokens that always stay.
        least: tokens of the context that are not cut.   interval: layers between two cuts (2 or 3 for deep models).
        last: weight of the last row, the first's being 1.
        every: decoded tokens of a group, cut once 1 + R tokens follow it.
        factor, decode_p: of a group factor · r_l stay, r_l from 1 to decode_p along the same cosine.
        leave: False cuts each layer by itself after a whole prefill (`kvjax.compress`): the paper's method without its saving.
    """
    return Policy(
        score=LateAttention(LateRows(share=recent, last=last, every=every)),
        allocate=CosineDecay(p=p, share=recent, least=least, interval=interval),
        select=GroupShares(sinks=sinks, share=recent, every=every, factor=factor, p=decode_p, leave=leave),
        when=Every(1, grows=True),
    )
