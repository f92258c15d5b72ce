"""FINCH: what the question attends to in the context before it, keys moved together afterwards.

*FINCH: Prompt-guided Key-Value Cache Compression*, arXiv 2408.00167.
Stages: score LevelledWindow(window) · select TopK(recent=window), or EachChunk(chunk, share) · keys re-rotated · after the prompt.
The delimiter between context and question is no token of the prompt; the window is the question's length.
Differs: a prompt is read whole and cut afterwards, as kvpress does it; the release reads segment after segment, the question each
time, over what is left of those before, makes one choice for all heads, and keeps the question beside the budget, not inside.

BibTeX:
    @misc{corallo2024finch, title={FINCH: Prompt-guided Key-Value Cache Compression},
      author={Giulio Corallo and others}, year={2024}, eprint={2408.00167}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.finch(budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.budget import number_of
from kvjax.encode import Rerotated, Stored
from kvjax.policy import Policy
from kvjax.score import LevelledWindow
from kvjax.select import EachChunk, TopK


def finch(budget: int | float = 0.5, window: int = 32, chunk: int | None = None, rerotate: bool = True) -> Policy:
    """Keep the question and the tokens it attends to, more where rows see more.

    Args:
        budget: slots, or a share of the prompt; with chunks a share, which is the selector's: make the policy anew for another one.
        window: tokens of the question.
        chunk: tokens of the chunks that each keep their share; None: the prompt as one.
        rerotate: whether kept keys are turned to positions 0, 1, 2, ...
    """
    select = TopK(recent=window)
    if chunk is not None:
        if not isinstance(number_of(budget), float):
            raise ValueError(f"finch(chunk={chunk}) keeps a share of every chunk: give budget as a float in (0, 1]; got {budget!r}")
        select = EachChunk(size=chunk, share=budget, protects=select)
    encode = Stored(positions=Rerotated()) if rerotate else Stored()
    return Policy(score=LevelledWindow(window=window), select=select, encode=encode, budget=budget)
