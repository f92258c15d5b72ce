"""NaCL: the ends of the text, the best by a few proxy queries, and a random sample of the rest.

*NACL: A General and Effective KV Cache Eviction Framework for LLMs at Inference Time*, arXiv 2408.03675, section 3.
Stages: score ProxyQueries · select BestAndSampled(sampled, seed, sinks) · after the prompt.
Differs: any budget (the release's 20% of a prompt are 1% ends, 12% best and 7% sampled: shares that stand for other budgets, too);
prompts of any length (the release cuts none of up to 2,048 tokens, and its sinks leave no room for a recent token below 25,700,
where its slice breaks); 5 to 64 proxies; scores are averaged over the query heads of a KV head (the release ranks KV head h by
query head h alone, mostly another KV head's where queries are grouped).

BibTeX:
    @misc{chen2024nacl, title={NACL: A General and Effective KV Cache Eviction Framework for LLMs at Inference Time},
      author={Yilong Chen and others}, year={2024}, eprint={2408.03675}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.nacl(budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.policy import Policy
from kvjax.score.proxies import ProxyQueries
from kvjax.select.sampled import BestAndSampled


def nacl(budget: int | float = 0.2, sampled: float = 0.35, sinks: int = 256, seed: int = 0) -> Policy:
    """Keep 1% of the prompt at its ends, draw a `sampled` share of the budget, and fill the rest with the best."""
    return Policy(score=ProxyQueries(), select=BestAndSampled(sampled=sampled, seed=seed, sinks=sinks), budget=budget)
