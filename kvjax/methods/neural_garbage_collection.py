"""Neural Garbage Collection: a model that was trained to forget keeps the blocks it looks at, every few hundred tokens.

*Neural Garbage Collection: Learning to Forget while Learning to Reason*, arXiv 2604.18002.
Stages: score WindowAttention(window, NoPool, AllMean) · allocate AllHeld · select Chunks(size, share) · every `interval` tokens.
The model itself is what is trained (`kvjax train neural_garbage_collection`, `kvjax.artefacts.retrofitted`); without that the
policy is only a ranking by attention. One set of blocks for all heads of a layer; just before a round a layer holds
interval / (1 - share) slots in the limit.
Differs: the number of blocks is rounded down (the paper, and training here, round to the nearest), and a block at the end may be
shorter; blocks are cut anew of the slots held. The paper's schedule of retentions, which its prompts tell the model, is of its
training.

BibTeX:
    @misc{ngc2026, title={Neural Garbage Collection: Learning to Forget while Learning to Reason},
      author={Michael Y. Li and Jubayer Ibn Hamid and Emily B. Fox and Noah D. Goodman},
      year={2026}, eprint={2604.18002}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.neural_garbage_collection(share=0.5, interval=32)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.allocate import AllHeld
from kvjax.policy import Policy
from kvjax.schedule import Every
from kvjax.score import AllMean, NoPool, WindowAttention
from kvjax.select import Chunks

#: What a user brings beside the prompt.
REQUIRES = ("training",)


def neural_garbage_collection(
    share: float = 0.5, size: int = 32, window: int = 5, interval: int = 256, after_prefill: bool = False
) -> Policy:  # fmt: skip
    """Keep the `share` of the blocks of `size` slots that the last `window` queries attend to most.

    Args:
        share: of the blocks that stay, 1 - ε.   interval: δ, tokens between rounds.
        after_prefill: whether there is a round when the prompt has been read, too.
    """
    return Policy(
        score=WindowAttention(window=window, pool=NoPool(), heads=AllMean()),
        allocate=AllHeld(),
        select=Chunks(size=size, share=share),
        when=Every(interval, grows=True, after_prefill=after_prefill),
    )
