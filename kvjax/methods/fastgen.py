"""FastGen: every head keeps by the cheapest rule of a list that recovers enough of its attention to the prompt.

*Model Tells You What to Discard: Adaptive KV Cache Compression for LLMs*, arXiv 2310.01801, section 3.
Stages: score HeadRules(rules) · allocate RuleSlots(rules) · select KindsAndBest · after the prompt and at every step.
Differs: one rule a KV head, from the mean over its query heads (the paper has no groups). A token attends to what is held and to
itself before one goes; the release overwrites first. Shares of the length count the tokens to come in recoveries, too
(`split=True`: as the release). Means are over all observations, not the last 400; a head may hold what it kept of the prompt.

BibTeX:
    @inproceedings{ge2024fastgen,
      title={Model Tells You What to Discard: Adaptive {KV} Cache Compression for {LLMs}},
      author={Ge, Suyu and Zhang, Yunan and Liu, Liyuan and Zhang, Minjia and Han, Jiawei and Gao, Jianfeng},
      booktitle={International Conference on Learning Representations},
      year={2024}
    }

Example:
    policy = kvjax.methods.fastgen(threshold=0.95, special=((1,),), punctuation=(11, 13), new=64)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.allocate import RuleSlots
from kvjax.head_rules import Rule, RuleList
from kvjax.policy import Policy
from kvjax.schedule import Every
from kvjax.score import HeadRules
from kvjax.select import KindsAndBest


def published_rules(heavy: float = 0.3, window: float = 0.3) -> tuple[Rule, ...]:
    """Special tokens; with punctuation; with heavy hitters; with a window; everything."""
    return (
        Rule(),
        Rule(punctuation=True),
        Rule(punctuation=True, heavy=heavy),
        Rule(punctuation=True, heavy=heavy, window=window),
        Rule(full=True),
    )


def fastgen(
    threshold: float = 0.9, special: tuple[tuple[int, ...], ...] = (), punctuation: tuple[int, ...] = (), sinks: int = 4,
    new: int = 256, rules: tuple[Rule, ...] | None = None, split: bool = False,
) -> Policy:  # fmt: skip
    """Keep in each head what its rule keeps, after the prompt and at every step; no budget is read.

    Args:
        threshold: share of a head's attention that its rule must recover.
        special: sequences of token ids that always stay.   punctuation: token ids of punctuation.   sinks: first tokens that stay.
        new: tokens that will be generated; shares of rules are of the prompt and these.
        rules: cheapest first (None: `published_rules()`); without `Rule(full=True)` a head that none serves gets the first.
        split: whether recoveries are taken with shares of the prompt alone.
    """
    if sinks < 1:
        raise ValueError(f"sinks is a number of first tokens that stay, at least 1; got {sinks}")
    if rules is not None and not (rules and all(isinstance(rule, Rule) for rule in rules)):
        raise ValueError(f"rules are kvjax.head_rules.Rule, at least one; got {rules!r}")
    given = RuleList(
        rules=rules or published_rules(), special=special, punctuation=punctuation, sinks=sinks, threshold=threshold, new=new,
        split=split,
    )  # fmt: skip
    return Policy(
        score=HeadRules(given), allocate=RuleSlots(given), select=KindsAndBest(), when=Every(1, grows=True)
    )  # fmt: skip
