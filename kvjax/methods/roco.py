"""RoCo: the lowest mean attention goes, among the tokens whose attention varies least.

*On the Efficacy of Eviction Policy for Key-Value Constrained Generative Language Model Inference*, arXiv 2402.06262, section 3.
Stages: score SteadyMean(recent, tail, sinks) · select TopK(sinks, recent=tail) · every step.
Differs: a prompt is cut in one go by its own statistics (the release feeds it in strides and counts none before the first), and
what the feasible tokens are too few for is taken from the next steadiest; guarded tokens are never feasible, even where few others
are.

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
from kvjax.select import TopK


def roco(
    budget: int | float = 256, recent: float = 0.3, tail: int = 10, sinks: int = 4, pin_prompt: bool = False
) -> Policy:  # fmt: skip
    """Keep the last `tail` tokens and, of those whose attention is steady, the ones of the highest mean.

    `pin_prompt` is the release's decoding: the prompt stays whole, without statistics, and generated tokens alone go; `budget` is
    then the prompt's length and the generated tokens held, together.
    """
    score = SteadyMean(recent=recent, tail=tail, sinks=0 if pin_prompt else sinks, pin_prompt=pin_prompt)
    select = TopK(sinks=0 if pin_prompt else sinks, recent=tail)
    return Policy(score=score, select=select, when=Every(1, after_prefill=not pin_prompt), budget=budget)
