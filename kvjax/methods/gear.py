"""GEAR: codes of a few bits, what they lose as a low-rank product, and the outliers as they are.

*GEAR: An Efficient KV Cache Compression Recipe for Near-Lossless Generative Inference of LLM*, arXiv 2403.05527, section 3.
Stages: encode Stored(keys=LowRank(Outliers(Affine over tokens)), values=LowRank(Outliers(Affine over channels)),
window=BlockFlush) · nothing is evicted; any policy that evicts after the prompt can take its `encode`.
X ≈ D + A Bᵀ + S: outliers S are taken out first, groups of the rest are coded, and r directions of the error are kept for a block
of tokens. Keys are coded after the rotary embedding.
Differs: a prompt is coded in the same blocks of `buffer` tokens as what follows it, each once, with factors of rank `rank`. The
release's kernels give a prompt one pair of rank 2. Its simulation, as its scripts run it, leaves a prompt as it is, and codes all
that is held anew, with one pair of rank 2, whenever that is a multiple of 64 tokens; the rank of 4 given for prompts is not used.
Outliers are a fixed number a row. A channel's row is a block. A token's is one KV head's, of which 1 a side is 3.1% of 64 channels;
the release's is all heads', 10 a side of 1,024 numbers, 2%, and it takes 10 a side of a channel, too, however long its row is.

BibTeX:
    @article{kang2024gear,
      title={GEAR: An Efficient KV Cache Compression Recipe for Near-Lossless Generative Inference of LLM},
      author={Kang, Hao and Zhang, Qingru and Kundu, Souvik and Jeong, Geonhwa and Liu, Zaoxing and Krishna, Tushar and Zhao, Tuo},
      journal={arXiv preprint arXiv:2403.05527}, year={2024}}

Example:
    >>> kvjax.methods.gear(outliers=0).encode.keys.bits_a_number(128)
    Fraction(13, 4)
"""

from kvjax.codec import Affine, Codec, LowRank, Outliers
from kvjax.encode import BlockFlush, Stored
from kvjax.policy import Policy


def gear(
    bits: int = 2, key_group: int = 64, value_group: int = 64, rank: int = 2, loops: int = 3, outliers: int = 1, buffer: int = 64,
    seed: int = 0,
) -> Policy:  # fmt: skip
    """Keep every token: codes, a low-rank error and a few exact numbers.

    Args:
        bits: of a code.
        key_group: tokens that share a key channel's step.   value_group: channels that share a token's.
        rank: r of every block's error; 0: none.   loops: of its power iteration.   seed: of where that begins.
        outliers: numbers kept on either side of every row; 0: none, the paper's GEAR-L.
        buffer: newest tokens that stay exact at most, and tokens of a block; a multiple of `key_group`.
    """

    def refined(codec: Codec, reduce: str) -> Codec:
        codec = Outliers(codec, each=outliers, reduce=reduce, size=buffer) if outliers else codec
        return LowRank(codec, size=buffer, rank=rank, loops=loops, seed=seed) if rank else codec

    keys = refined(Affine(bits=bits, group=key_group, reduce="token"), "token")
    values = refined(Affine(bits=bits, group=value_group, reduce="channel"), "channel")
    return Policy(encode=Stored(keys=keys, values=values, window=BlockFlush(buffer)))
