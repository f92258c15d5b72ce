"""One context and its questions, answered over one compressed cache."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import kvjax
from experiments.tasks.chat import continuation
from experiments.tasks.datasets.scbench.grades import GRADES
from experiments.tasks.example import Example, block
from experiments.traces import of_retrieval

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Turn:
    """A question: the ids fed before its answer, how it is graded (a name of GRADES), and the ids of the reference answer."""

    fed: Ids
    kind: str
    references: tuple[str, ...]
    new_tokens: int
    told: Ids = ()


@dataclass(frozen=True)
class Session(Example):
    """A compressed context and its turns; `apart`: each turn starts from the compressed context."""

    turns: tuple[Turn, ...] = ()
    apart: bool = True

    @property
    def room(self) -> int:
        """Slots that the turns need: the longest, or all up to the last answer."""
        if self.apart:
            return max(len(turn.fed) + turn.new_tokens for turn in self.turns)
        fed = sum(len(turn.fed) for turn in self.turns) + sum(len(turn.told) for turn in self.turns[:-1])
        return fed + max(turn.new_tokens for turn in self.turns)


def answered(lm: Any, cache: Any, policy: Any, session: Session) -> list[dict[str, Any]]:
    """The session over every row of `cache`: a dict a row with the mean score, each turn's score, answer and kind, tokens read."""
    rows = cache.lengths.shape[1]
    texts: list[list[str]] = [[] for _ in range(rows)]
    last, told, read = cache, (), 0
    for turn in session.turns:
        before = cache if session.apart else last
        last = kvjax.extend(lm, before, [[*told, *turn.fed]] * rows, policy, block=block(policy)).cache
        out = kvjax.decode(lm, last, policy, max_new_tokens=turn.new_tokens, stop=session.stop)
        read += len(told) + len(turn.fed) + int(out.lengths.max())
        told = () if session.apart else turn.told
        for found, row, count in zip(texts, out.tokens, out.lengths, strict=True):
            said = [int(token) for token in row[: int(count)] if int(token) not in session.stop]
            found.append(continuation(lm, turn.fed, said))
    return [row_of(found, session.turns) | {"read": read} | of_retrieval(out.cache, policy, i) for i, found in enumerate(texts)]


def row_of(answers: Sequence[str], turns: Sequence[Turn]) -> dict[str, Any]:
    """Mean score of the turns; where they are of two kinds, the mean of each kind too."""
    scores = [float(GRADES[turn.kind](text, turn.references)) for text, turn in zip(answers, turns, strict=True)]
    kinds = [turn.kind for turn in turns]
    found = {"score": sum(scores) / len(scores), "scores": scores, "answers": list(answers), "kinds": kinds}
    if len(set(kinds)) > 1:
        of_kind = {kind: [score for score, mine in zip(scores, kinds, strict=True) if mine == kind] for kind in sorted(set(kinds))}
        found |= {f"score_{kind}": sum(mine) / len(mine) for kind, mine in of_kind.items()}
    return found
