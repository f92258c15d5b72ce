"""One prompt of a task, as token ids, and how long it is in the cache."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Array, Float32

import kvjax


@dataclass(frozen=True)
class Example:
    """A prompt: `compressed` ids are prefilled and compressed, `fed` ids follow uncompressed, then comes the answer.

    Attributes:
        task: name of the task.
        mode: "unseen" (compressed before the question is known), "seen" (the question is compressed too), or "-".
        length: the length asked for; the context is at most this many tokens.
        index: which prompt of the seed.
        context, question, prefix: ids; the prefix opens the answer and is never compressed.
        answer: ids of the text to predict (ppl), empty where an answer is generated.
        references: the right answers, as text.
        new_tokens: tokens generated at most; 0 where the answer is given.
        stop: token ids that end an answer.
        meta: what the result row repeats, such as the depth of the needle.
    """

    task: str
    mode: str
    length: int
    index: int
    context: tuple[int, ...]
    question: tuple[int, ...] = ()
    prefix: tuple[int, ...] = ()
    answer: tuple[int, ...] = ()
    references: tuple[str, ...] = ()
    new_tokens: int = 0
    stop: tuple[int, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def compressed(self) -> tuple[int, ...]:
        return self.context + self.question if self.mode == "seen" else self.context

    @property
    def fed(self) -> tuple[int, ...]:
        return self.prefix if self.mode == "seen" else self.question + self.prefix

    @property
    def room(self) -> int:
        """Slots that the tokens after the compressed part need."""
        return len(self.fed) + len(self.answer) + self.new_tokens


@dataclass(frozen=True)
class Read:
    """A prompt that has been read.

    Attributes:
        example: the prompt.
        pre: what `kvjax.prefill` made of it: any policy's to compress, or the cache of one that cuts it as it is read.
        seconds: that it took.
    """

    example: Example
    pre: kvjax.Prefilled | kvjax.KVCache
    seconds: float = 0.0

    @property
    def logits(self) -> Float32[Array, " v"]:
        """Of the prompt's last token."""
        return self.pre.logits[0] if isinstance(self.pre, kvjax.KVCache) else self.pre.rows[0].logits


def block(policy: Any) -> int:
    """Known tokens fed at once: one where the policy evicts while decoding, so that it keeps its schedule."""
    return 1 if policy.when.decoding else 512
