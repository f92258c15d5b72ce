"""ZipCache: salient tokens in more bits than the others, values coded without a step for every channel.

*ZipCache: Accurate and Efficient KV Cache Quantization with Salient Token Identification*, NeurIPS 2024, arXiv 2405.14256.
Stages: score VisibleMeanAttention · encode Tiered(new tokens, and salient and other tokens in codes) · every `interval` tokens.
p_i = the mean attention of the queries that see token i; floor((1 - salient) n) of smallest p have `low` bits, the others `high`.
Keys: a step and a minimum a channel for all tokens of a class. Values: x / c_j, c_j = sqrt(max_t |x_tj|), a step and a minimum a
row. New tokens are exact until there are `interval` of them, which are then ranked by the newest query's attention, as released,
and coded as a block.
Differs: all queries of the prompt are probes, of which the paper draws a tenth, and p has the right count for each key (the release
divides a tenth's sum by the number of all); under grouped queries p is of the KV head. c is of the tokens of a class, in the
release of all tokens before they are parted. Codes are computed in float32 from steps, minima and c of 16 bits, there in the
model's dtype. A value row's step and minimum are kept with every head's slot. A block of later tokens has ranges of its own.

BibTeX:
    @inproceedings{he2024zipcache, title={{ZipCache}: Accurate and Efficient {KV} Cache Quantization with Salient Token
      Identification}, author={He, Yefei and Zhang, Luoming and Wu, Weijia and Liu, Jing and Zhou, Hong and Zhuang, Bohan},
      booktitle={NeurIPS}, year={2024}}

Example:
    policy = kvjax.methods.zipcache()
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.budget import EVERYTHING
from kvjax.codec import Affine, ChannelRange, ChannelSeparable
from kvjax.encode import Stored, Tiered
from kvjax.policy import Policy
from kvjax.schedule import Every
from kvjax.score import StepAttention, VisibleMeanAttention
from kvjax.tiers import SalientBlocks


def zipcache(salient: float = 0.6, high: int = 4, low: int = 2, interval: int = 100) -> Policy:
    """Keep every token in a few bits, the salient ones in more.

    Args:
        salient: share of the prompt's tokens, and of every later block's, in `high` bits.
        high, low: bits of salient tokens and of the others.
        interval: new tokens that are exact before they are coded together.

    Raises:
        ValueError: a share that leaves a class of a block empty.
    """
    rule = SalientBlocks(share=salient, interval=interval)
    if not 0 < rule.salient < interval:
        raise ValueError(f"a block of {interval} tokens needs both classes; a share of {salient} makes {rule.salient} salient")
    blocks = _block(high, rule.salient), _block(low, interval - rule.salient)
    encode = Tiered((Stored(), _prompt(high), _prompt(low), *blocks), rule=rule)
    when = Every(interval, score=StepAttention())
    return Policy(score=VisibleMeanAttention(), encode=encode, when=when, budget=EVERYTHING)


def _prompt(bits: int) -> Stored:
    """A class of the prompt's tokens."""
    return Stored(keys=ChannelRange(bits), values=ChannelSeparable(bits))


def _block(bits: int, tokens: int) -> Stored:
    """A class of a later block's tokens."""
    return Stored(keys=Affine(bits, group=tokens, reduce="token"), values=ChannelSeparable(bits, block=tokens), whole=True)
