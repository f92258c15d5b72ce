"""SirLLM: before each turn of a dialogue, the most surprising tokens stay, with sinks and the most recent.

*SirLLM: Streaming Infinite Retentive LLM*, arXiv 2405.12528, section 3.
Stages: score Surprise(turn, eta) · select BestAndRecent(sinks, recent) · encode Stored(positions) · every `turn` tokens.
One set of tokens for all layers and heads. Logits of the prompt's tokens are needed: the head's product with all of them.
Differs: turns have one length, `turn`, known beforehand, and the prompt is the first; a cut comes when a turn ends, which is before
the next. A turn of one token scores 0. Surprisals are in nats. A token's surprisal is the paper's, -log P_{i-1}(x_i); the release
gives token i -log P_{i-1}(x_{i-1}), how unlikely its predecessor was to come again.

BibTeX:
    @inproceedings{yao2024sirllm,
      title={{SirLLM}: Streaming Infinite Retentive {LLM}},
      author={Yao, Yao and Li, Zuchao and Zhao, Hai},
      booktitle={Proceedings of the 62nd Annual Meeting of the Association for Computational Linguistics},
      year={2024}
    }

Example:
    policy = kvjax.methods.sirllm(budget=64, recent=16, turn=16, eta=0.7)
    cache = kvjax.compress(kvjax.prefill(lm, ids, needs=policy), policy)
    cache = kvjax.extend(lm, cache, ids[:16], policy).cache
"""

from kvjax.encode import InCache, Stored
from kvjax.encode.positions import PositionPolicy
from kvjax.policy import Policy
from kvjax.schedule import Every
from kvjax.score import Surprise
from kvjax.select import BestAndRecent


def sirllm(
    budget: int | float = 1024, sinks: int = 4, recent: int = 0, turn: int = 64, eta: float = 1.0,
    positions: PositionPolicy = InCache(),
) -> Policy:  # fmt: skip
    """Keep sinks, surprising and recent tokens so that the next turn fits.

    Args:
        budget: slots a head keeps before a turn: the paper's capacity s + r + n_e less the turn.
        sinks: s, first tokens that stay.   recent: r, slots that go to the last tokens; the others go by surprisal.
        turn: tokens of a turn.
        eta: what is left of a surprisal from turn to turn (0.7 for dialogue, 1.0 for lists, 0.9 for games).
        positions: InCache() as published, or Absolute().
    """
    if turn < 1:
        raise ValueError(f"a turn has at least 1 token; got turn={turn}")
    return Policy(
        score=Surprise(turn=turn, eta=eta),
        select=BestAndRecent(sinks=sinks, recent=recent),
        encode=Stored(positions=positions),
        when=Every(turn),
        budget=budget,
    )
