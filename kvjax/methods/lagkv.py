"""LagKV: tokens whose channels spread unevenly in the range of the tokens that follow.

*LagKV: Lag-Relative Information of the KV Cache Tells Which Tokens Are Important*, arXiv 2504.04704.
Stages: score LagSpread(sinks, lag) · after the prompt; recursive: select BlockShare(share) · at every token that completes a block.
Needs no queries.
Differs: by default a prompt is cut once to a budget, blocks compared by ranks, as in kvpress; the release's cache is the recursive
form. That keeps slots in position order (the release leaves them in the order of their scores).

BibTeX:
    @misc{liang2025lagkv, title={LagKV: Lag-Relative Information of the KV Cache Tells Which Tokens Are Important},
      author={Manlai Liang and others}, year={2025}, eprint={2504.04704}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.lagkv(budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.budget import number_of
from kvjax.policy import Policy
from kvjax.schedule import Every
from kvjax.score import LagSpread
from kvjax.select import BlockShare


def lagkv(
    budget: int | float = 256, sinks: int = 4, lag: int = 128, cross: bool = False, recursive: bool = False,
    value_weight: float = 1.0,
) -> Policy:  # fmt: skip
    """Once after the prompt, or as the text grows.

    Args:
        budget: slots, or a share of the prompt. Recursive: the share of every block that is kept, so what is held grows; it is the
            selector's: make the policy anew for another one.
        sinks, lag: first tokens kept, and tokens of a block (the release: 16 and 1,024).
        cross: whether tokens of different blocks are compared by their scores, not by their ranks in their blocks.
        recursive: whether every block is cut once, as soon as the next one is complete, while decoding too.
        value_weight: weight of the values' spread beside the keys'.
    """
    score = LagSpread(sinks=sinks, lag=lag, cross=cross, value_weight=value_weight)
    if not recursive:
        return Policy(score=score, budget=budget)
    if not isinstance(number_of(budget), float):
        raise ValueError(f"lagkv(recursive=True) keeps a share of every block: give budget as a float in (0, 1]; got {budget!r}")
    select = BlockShare(sinks=sinks, lag=lag, share=budget)
    return Policy(score=score.replace(cross=True), select=select, when=Every(1, grows=True), budget=budget)
