"""OmniKV: a few layers see everything and choose what the layers behind them read; the rest is in host memory.

*OmniKV: Dynamic Context Selection for Efficient Long-Context LLMs*, ICLR 2025, section 3.
Stages: retrieve FilterLayers(filters, tokens, waiting, by, home) · nothing is evicted.
The prompt's keys and values of layers that read few tokens are in host memory; filters, the layers that wait behind them and those
before the first filter are dense, on the device. Generated tokens are on the device and always read.
Differs: the newest query alone chooses, as by the released default; means over the last sixteen are left out.

BibTeX:
    @inproceedings{hao2025omnikv, title={OmniKV: Dynamic Context Selection for Efficient Long-Context LLMs},
      author={Hao, Jitai and Zhu, Yuke and Wang, Tian and Yu, Jun and Xin, Xin and Zheng, Bo and Ren, Zhaochun and Guo, Sheng},
      booktitle={International Conference on Learning Representations}, year={2025}}

Example:
    policy = kvjax.methods.omnikv(tokens=0.067, filters=(0, lm.decoder.layers // 2))
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from collections.abc import Sequence

from kvjax.placement import OnDevice, OnHost
from kvjax.policy import Policy
from kvjax.retrieve import FilterLayers, RawLogits
from kvjax.types import Function


def omnikv(
    tokens: int | float = 0.067, filters: Sequence[int] = (2, 8, 18), waiting: int = 1, by: Function = RawLogits(),
    home: OnDevice = OnHost(),
) -> Policy:
    """Keep everything, read `tokens` of the prompt in most layers.

    Args:
        tokens: an int, or the share of the prompt as a float in (0, 1].
        filters: layers that choose, in ascending order (the default is Llama-3-8B's).   waiting: dense layers behind each.
        by: RawLogits() or Probabilities(), what heads are compared by.
        home: OnHost(), ByCallback(), or OnDevice() where there is no host to offload to.
    """
    return Policy(retrieve=FilterLayers(filters=tuple(filters), tokens=tokens, waiting=waiting, by=by, home=home))
