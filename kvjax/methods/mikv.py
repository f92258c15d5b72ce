"""MiKV: important tokens in high precision, all others in a few bits, none evicted.

*No Token Left Behind: Reliable KV Cache Compression via Importance-Aware Mixed Precision Quantization*, arXiv 2402.18096, section
4.
Stages: score AccumulatedAttention · encode Tiered(important slots as they are, the rest in few bits, keys balanced) · every step.
A head's floor(r n) important tokens, half of them the newest, half of the largest accumulated attention (H2O), are exact; what is
no longer among them is coded and stays. Keys are coded as b ⊙ k, b_c = sqrt(max|q_c| / max|k_c|), fitted on the prompt.
Differs: no code is published: that demotion is final, and that b comes from the prompt alone, is our reading. A group is 64
channels whatever the head (the paper's is half of its heads' 128: `group=32` for heads of 64). Scores are averaged over the query
heads of a KV head, b takes the largest |q| of them.

BibTeX:
    @article{yang2024mikv, title={No Token Left Behind: Reliable {KV} Cache Compression via Importance-Aware Mixed Precision
      Quantization}, author={Yang, June Yong and Kim, Byeongwook and Bae, Jeongin and Kwon, Beomseok and Park, Gunho and Yang, Eunho
      and Kwon, Se Jung and Lee, Dongsoo}, journal={arXiv:2402.18096}, year={2024}}

Example:
    policy = kvjax.methods.mikv(share=0.25, low=4, group=16)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.budget import EVERYTHING
from kvjax.codec import Affine, Balanced
from kvjax.encode import Stored, Tiered
from kvjax.policy import Policy
from kvjax.schedule import Every
from kvjax.score import AccumulatedAttention
from kvjax.tiers import ImportantFirst


def mikv(share: float = 0.2, high: int = 16, low: int = 2, group: int = 64, recent_share: float = 0.5) -> Policy:
    """Keep every token, the important ones in more bits.

    Args:
        share: r, of a head's tokens that are important.
        high: bits of their codes; 16 leaves them as they are.   low: bits of the others\' codes.
        group: channels that share a step and a minimum.
        recent_share: of the important tokens, the newest.
    """
    stores = Stored() if high == 16 else _coded(high, group), _coded(low, group)
    encode = Tiered(stores, rule=ImportantFirst(share=share, recent_share=recent_share))
    return Policy(score=AccumulatedAttention(), encode=encode, when=Every(1), budget=EVERYTHING)


def _coded(bits: int, group: int) -> Stored:
    """Every token by itself, keys balanced."""
    codec = Affine(bits=bits, group=group, reduce="channel")
    return Stored(keys=Balanced(codec), values=codec)
