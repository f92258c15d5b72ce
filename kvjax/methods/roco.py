"""RoCo: the lowest mean attention goes, among the tokens whose attention varies least.

*On the Efficacy of Eviction Policy for Key-Value Constrained Generative Language Model Inference*, arXiv 2402.06262, section 3.
Stages: score SteadyMean(recent, prompt_recent, tail, sinks) · select SparedFirst over TopK(sinks, recent=tail) · every step.
Differs: a prompt is cut in one go by its own statistics, with a stride of one in its rule (the release feeds it in strides, counts
none before the first, and spares a stride's length more), and what the feasible tokens are too few for is taken from the next
steadiest; guarded tokens are never feasible, even where few others are. Unless the prompt is pinned, sinks are guarded while
decoding, too (in the release only while a prompt is read).

BibTeX:
    @misc{ren2024roco, title={On the Efficacy of Eviction Policy for Key-Value Constrained Generative Language Model Inference},
      author={Siyu Ren and others}, year={2024}, eprint={2402.06262}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.roco(budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.policy import Policy
from kvjax.schedule import Every
from kvjax.score import SteadyMean
from kvjax.select import SparedFirst, TopK


def roco(
    budget: int | float = 256, recent: float = 0.3, tail: int = 10, sinks: int = 4, pin_prompt: bool = False,
    prompt_recent: float = 0.1,
) -> Policy:  # fmt: skip
    """Keep the last `tail` tokens and, of those whose attention is steady, the ones of the highest mean.

    Args:
        recent: share of the budget that is spared while decoding, the tail and the least steady.
        tail, sinks: last and first tokens that stay.
        pin_prompt: the release's decoding: the prompt stays whole, without statistics, and generated tokens alone go; `budget` is
            then the prompt's length and the generated tokens held, `tail` of them at the least, together.
        prompt_recent: `recent` of the prompt's cut.
    """
    first = 0 if pin_prompt else sinks
    return Policy(
        score=SteadyMean(recent=recent, prompt_recent=prompt_recent, tail=tail, sinks=first, pin_prompt=pin_prompt),
        select=SparedFirst(TopK(sinks=first, recent=tail)),
        when=Every(1, after_prefill=not pin_prompt),
        budget=budget,
    )
