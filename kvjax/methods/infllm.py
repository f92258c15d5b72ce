"""InfLLM: everything is kept; a query reads the first tokens, its local window, and the blocks between that match it.

*InfLLM: Training-Free Long-Context Extrapolation for LLMs with an Efficient Context Memory*, arXiv 2402.04617, section 3.
Stages: attention FarBlockAttention(sizes) while the prompt is read · encode Stored(positions=Clamped(local)) · retrieve
FarBlocks(sizes) · nothing is evicted. No key stands farther from a query than `local`.
Differs: representatives are a query head's own, as in the release; decoded tokens are read one by one and fill no blocks; far
keys stand `local` from a query (in the release one less, the last place inside the window); the last token of a prompt shares its
chunk's blocks (the release reads it by itself, so it chooses its own); there is no cache of fetched blocks on the device: give
`placement=OnHost()` to keep values in host memory.

BibTeX:
    @inproceedings{xiao2024infllm,
      title={{InfLLM}: Training-Free Long-Context Extrapolation for {LLMs} with an Efficient Context Memory},
      author={Xiao, Chaojun and Zhang, Pengle and Han, Xu and Xiao, Guangxuan and Lin, Yankai and Zhang, Zhengyan and Liu, Zhiyuan
              and Sun, Maosong},
      booktitle={Advances in Neural Information Processing Systems},
      year={2024}
    }

Example:
    policy = kvjax.methods.infllm(local=1024)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=32)
"""

from kvjax.encode import Clamped, OnDevice, Stored
from kvjax.far_blocks import FarSizes
from kvjax.policy import Policy
from kvjax.prefill import FarBlockAttention
from kvjax.retrieve import FarBlocks


def infllm(
    local: int = 4096, initial: int = 128, block: int = 128, top: int = 16, representatives: int = 4, queries: int = 512,
    placement: OnDevice = OnDevice(),
) -> Policy:  # fmt: skip
    """Read the first tokens, the last ones, and the most relevant blocks between them.

    Args:
        local: last tokens, at their own distances; farther ones all stand at this distance.   initial: first tokens, always read.
        block: tokens of a block.   top: blocks a query reads.   representatives: keys that stand for a block.
        queries: tokens of the prompt that share a choice of blocks, a multiple of 64.
        placement: where values live: OnDevice(), OnHost() or ByCallback().
    """
    sizes = FarSizes(local=local, initial=initial, block=block, top=top, representatives=representatives)
    return Policy(
        encode=Stored(positions=Clamped(local), placement=placement),
        retrieve=FarBlocks(sizes),
        attention=FarBlockAttention(sizes, queries),
    )
