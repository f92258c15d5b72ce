"""How a row of a benchmark becomes a prompt: the benchmark's own way, or kvpress's. Numbers of the two do not compare.

    OFFICIAL  the whole prompt, question included, is cut in the middle to `length` tokens and compressed
    KVPRESS   the context is cut at its end to `length` tokens and compressed; the question follows, or is compressed too (seen)

Sources: THUDM/LongBench, LongBench/pred.py and pred.py; OpenBMB/InfiniteBench, src/eval_yarn_mistral.py (one way for all
three); NVIDIA/kvpress, kvpress/pipeline.py and evaluation/evaluate.py. `length` is what these call max_length, TRUNCATE_LEN
and max_context_length: the model's limit, less what the chat template and the answer need, such as 3500 for 4096.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from experiments.tasks.chat import encode_plain, frame
from experiments.tasks.dataset_files import Record

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Asked:
    """A row as text. OFFICIAL has one text, the context; `chat`: it goes into the chat template, if the model has one.

    `mark`: what the benchmark writes where a context was cut, read by `experiments.tasks.split`.   `thinking`: the answer may
    begin with thoughts, where the template asks for them by itself (`experiments.tasks.chat.written`).
    """

    context: str
    question: str = ""
    prefix: str = ""
    chat: bool = True
    mark: str = ""
    thinking: bool = False


@dataclass(frozen=True)
class Rules:
    """What a protocol makes of a task: a row's text, tokens generated for the answer at most, the answer's score (0 to 1)."""

    ask: Callable[[Record], Asked]
    new_tokens: int
    grade: Callable[[str, Sequence[str]], float]


@dataclass(frozen=True)
class Cut:
    """A prompt as ids; `dropped` tokens did not fit."""

    context: Ids
    question: Ids
    prefix: Ids
    dropped: int


class TwoRules(Protocol):
    """A task that knows its rules under both protocols."""

    def official(self) -> Rules: ...
    def kvpress(self) -> Rules: ...


class Asking(Protocol):
    """A protocol: its name, the question modes it has, which of a task's rules it takes and how it cuts."""

    name: str
    MODES: tuple[str, ...]

    def rules(self, task: TwoRules) -> Rules: ...
    def cut(self, lm: Any, asked: Asked, length: int, mode: str) -> Cut: ...


@dataclass(frozen=True)
class Official:
    """The benchmark's own code: one text, cut in the middle, then put into the chat template.

        kept = first floor(length / 2) and last floor(length / 2) tokens of tokenizer(text), special tokens counted

    The kept halves become text again, which is tokenized anew within the template, as the benchmarks do: where the halves
    meet a token may be more or less. We differ: LongBench v2 and InfiniteBench join the halves before they make text of
    them, and LongBench v2 keeps one more token of an odd length; a model's own chat template stands for the benchmark's list.
    """

    name: str = "official"
    MODES: tuple[str, ...] = ("seen",)

    def rules(self, task: TwoRules) -> Rules:
        return task.official()

    def cut(self, lm: Any, asked: Asked, length: int, mode: str) -> Cut:
        """The prompt, all of it context; the template's tokens come on top of `length`."""
        del mode
        inner = lm.tokenizer.inner
        ids, text, dropped = list(inner(asked.context, verbose=False).input_ids), asked.context, 0
        if len(ids) > length:
            half = length // 2
            dropped = len(ids) - 2 * half
            text = "".join(inner.decode(part, skip_special_tokens=True) for part in (ids[:half], ids[-half:]))
        if asked.chat and inner.chat_template:
            before, after = frame(lm, thinking=asked.thinking)
            return Cut(tuple(encode_plain(lm, before + text + after)), (), (), dropped)
        return Cut(tuple(inner(text, verbose=False).input_ids), (), (), dropped)


@dataclass(frozen=True)
class KVPress:
    """kvpress's evaluation: context, question and the answer's opening apart, the context cut at its end.

    The context begins with the chat template's opening, which `length` counts. Seen, the question is a part of the context
    and is cut with it. Templates that can are asked to turn thinking off, as kvpress does.
    """

    name: str = "kvpress"
    MODES: tuple[str, ...] = ("unseen", "seen")

    def rules(self, task: TwoRules) -> Rules:
        return task.kvpress()

    def cut(self, lm: Any, asked: Asked, length: int, mode: str) -> Cut:
        """The prompt; question, template and prefix are tokenized as one text and stand in `question`, seen in `prefix`."""
        before, after = frame(lm, thinking=asked.thinking)
        context = asked.context + (asked.question if mode == "seen" else "")
        ids = encode_plain(lm, before + context)
        rest = tuple(encode_plain(lm, ("" if mode == "seen" else asked.question) + after + asked.prefix))
        question, prefix = ((), rest) if mode == "seen" else (rest, ())
        return Cut(tuple(ids[:length]), question, prefix, dropped=max(0, len(ids) - length))


OFFICIAL = Official()
KVPRESS = KVPress()
