"""A conversation over a kept cache: questions about one document, answered one after the other over one compressed cache.

    score = mean over turns of [the number asked for is in the answer]

The document is compressed once. Each turn's question and answer stay in the cache, and the next question follows them, as a
chat goes on. In mode "seen" the first question is compressed with the document; the later ones are never known before.

Source: Li et al., 2024, "SCBench: A KV Cache-Centric Analysis of Long-Context Methods", section 3 (multi-turn mode). We differ:
the document is essays with one of RULER's magic numbers for each turn, so that every turn is judged exactly; the model reads
its own answers, where that benchmark feeds the reference ones.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import islice
from typing import Any, ClassVar

import kvjax
from experiments.batch_size import rows_that_fit
from experiments.tasks.chat import MARK, continuation, encode_plain, frame, written
from experiments.tasks.draft import Draft, Drafts, Request
from experiments.tasks.essays import between, sentences
from experiments.tasks.example import Example, Read, block
from experiments.tasks.generated import Generated
from experiments.tasks.niah import places
from experiments.tasks.ruler.kinds import NUMBERS, WORDS
from experiments.tasks.ruler.match import string_match_part
from experiments.tasks.ruler.niah import MANY, NEEDLE, ONE
from experiments.traces import of_retrieval

#: Stands for the model's words while the template is split; no template contains it.
ANSWER_MARK = "<<model words>>"


@dataclass(frozen=True)
class Dialogue(Example):
    """A prompt with further turns: `later` has the ids fed after each answer; references has one answer a turn."""

    later: tuple[tuple[int, ...], ...] = ()

    @property
    def room(self) -> int:
        """Slots that all turns need."""
        return super().room + sum(len(ids) + self.new_tokens for ids in self.later)


@dataclass(frozen=True)
class Script(Draft):
    """A draft with further turns: question and opening of the answer of each."""

    later: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Conversation(Generated):
    """`turns` questions about one document; a sweep takes it as it is, without `Answering`."""

    NAME: str = "conversation"
    turns: int = 4
    new_tokens: ClassVar[int] = 32

    def __post_init__(self) -> None:
        if self.turns < 1:
            raise ValueError(f"a conversation has 1 turn at least; got {self.turns}")

    def drafts(self, request: Request) -> Drafts:
        return Drafts(partial(self._write, request))

    def grade(self, answer: str, references: Sequence[str]) -> float:
        """1 if the answer of one turn contains its number."""
        return string_match_part(answer, references)

    def build(self, request: Request, draft: Script, mode: str) -> Dialogue:
        """The first turn as any prompt, the later ones between the halves of the model's chat template."""
        first = super().build(request, draft, mode)
        after, again = frame(request.lm)[1], next_turn(request.lm)
        later = [again + question.lstrip("\n") + after + prefix for question, prefix in draft.later]
        known = {field.name: getattr(first, field.name) for field in fields(Example)}
        return Dialogue(**known, later=tuple(tuple(encode_plain(request.lm, text)) for text in later))

    def measure(self, lm: Any, cache: Any, policy: Any, reads: Sequence[Read]) -> list[dict[str, Any]]:
        """All turns, each row of `cache` with its own: a dict a row with score, scores and answers of the turns, tokens read."""
        examples: list[Dialogue] = [read.example for read in reads]
        example = examples[0]
        said: list[list[int]] = [[] for _ in examples]
        texts: list[list[str]] = [[] for _ in said]
        read = 0
        for turn in zip(*((asked.fed, *asked.later) for asked in examples), strict=True):
            fed = [following(row, ids, example.stop) for row, ids in zip(said, turn, strict=True)]
            heard = kvjax.extend(lm, cache, fed, policy, block=block(policy))
            out = kvjax.decode(lm, heard.cache, policy, max_new_tokens=example.new_tokens, stop=example.stop)
            cache = out.cache
            read += max(map(len, fed)) + int(out.lengths.max())
            said = [[int(token) for token in row[: int(n)]] for row, n in zip(out.tokens, out.lengths, strict=True)]
            for found, row, ids in zip(texts, said, turn, strict=True):
                found.append(continuation(lm, ids, [token for token in row if token not in example.stop]))
        rows = enumerate(zip(texts, examples, strict=True))
        return [self._row(found, asked.references) | {"read": read} | of_retrieval(cache, policy, i) for i, (found, asked) in rows]

    def alike(self, example: Dialogue) -> Hashable:
        """Dialogues of as many turns whose answers end alike are held together."""
        return example.new_tokens, example.stop, len(example.later)

    def tokens(self, example: Dialogue) -> tuple[int, int]:
        """Tokens fed and generated at most, of all turns."""
        turns = (example.fed, *example.later)
        return sum(map(len, turns)), len(turns) * example.new_tokens

    rows_at_once = staticmethod(rows_that_fit)

    def _row(self, answers: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
        scores = [self.grade(answer, (reference,)) for answer, reference in zip(answers, references, strict=True)]
        return {"score": sum(scores) / len(scores), "scores": scores, "answers": list(answers)}

    def _write(self, request: Request, amount: int) -> Script:
        draw = request.draw(self.NAME)
        keys, numbers = (list(islice(kind.distinct(draw), self.turns)) for kind in (WORDS, NUMBERS))
        needles = [NEEDLE.format(kind="numbers", key=key, value=value) for key, value in zip(keys, numbers, strict=True)]
        parts = sentences(request.essay(amount))
        depths = [draw.random() for _ in needles]
        text = MANY[0].format(kind="numbers") + between(parts, needles, places(parts, depths))
        turns = [tuple(part.format(kind="number", query=key) for part in ONE[1:]) for key in keys]
        return Script(text, *turns[0], tuple(numbers), {"depths": depths}, later=tuple(turns[1:]))


def next_turn(lm: Any) -> str:
    """Text between the model's words and the user's next; a line break without a template."""
    if not lm.tokenizer.inner.chat_template:
        return "\n"
    roles = (("user", MARK), ("assistant", ANSWER_MARK), ("user", MARK))
    turns = [{"role": role, "content": words} for role, words in roles]
    middle, found, _ = written(lm, turns).partition(ANSWER_MARK)[2].partition(MARK)
    if not found:
        raise ValueError(f"the chat template of {lm.name!r} does not repeat the turns' words as they are")
    return middle


def following(said: Sequence[int], ids: Sequence[int], stop: Sequence[int]) -> list[int]:
    """`ids` without their first where the answer before them ended in that very stop token: the cache has it already."""
    ended = bool(said) and said[-1] in stop and said[-1] == ids[0]
    return list(ids[1:] if ended else ids)


CONVERSATION = Conversation()
