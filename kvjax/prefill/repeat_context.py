"""A second pass that asks for the prompt again, chunk after chunk, and hears each chunk read out."""

import zlib
from collections.abc import Sequence
from typing import ClassVar

from flax import struct

from kvjax.cache.heap import trim
from kvjax.evidence import AttentionStatistics, Need, Probed
from kvjax.evidence.reduce import Max
from kvjax.prefill.prefilled import Prefilled, PrefilledRow
from kvjax.prefill.probe import probe_row, with_rows
from kvjax.prefill.probe_checks import Span, check_model, check_row
from kvjax.prefill.text_inside import ids_inside
from kvjax.protocols import LanguageModel
from kvjax.ranges import Size, Whole

#: What is asked before the first chunk, and before the others, whose predecessor's last tokens follow.
FIRST = "\n\nRepeat the text above, word for word."
FURTHER = "\n\nRepeat the text above, word for word, from where it says:"

#: Ids of both requests.
Requests = tuple[Sequence[int], Sequence[int]]


@struct.dataclass
class RepeatedContext(Probed):
    """What a pass that repeats the prompt attends to: `kvjax.second_pass` records it.

    The prompt behind its first `system` tokens is cut into chunks. For each, a request and the chunk's own tokens are read on top
    of the whole prompt; probabilities are taken among the first `system` keys, the chunk's and the pass's own, and told of the
    chunk's keys. Every token of the pass counts, the request's too, unless `own`. A prompt without anything behind `system` is one
    chunk.

    Args:
        chunk: tokens of a chunk; the last is short.
        system: first tokens of the prompt, such as a system prompt: no chunk holds them, all see them.
        quoted: last tokens of the chunk before that are quoted behind the request.
        own: whether the tokens that repeat the chunk count alone.
        first, further: ids of the request for the first chunk and for the others; None: FIRST and FURTHER by the model's tokenizer.

    Source: KVzip, arXiv 2505.23416, section 3.2. Differs: the wording of the request.
    """

    need: Need = AttentionStatistics(Max())
    name: str = struct.field(pytree_node=False, default="repeated_context")
    chunk: Size = struct.field(pytree_node=False, default=2000)
    system: Whole = struct.field(pytree_node=False, default=4)
    quoted: Whole = struct.field(pytree_node=False, default=8)
    own: bool = struct.field(pytree_node=False, default=False)
    first: tuple[int, ...] | None = struct.field(pytree_node=False, default=None)
    further: tuple[int, ...] | None = struct.field(pytree_node=False, default=None)

    advice: ClassVar[str] = "run kvjax.second_pass(lm, pre, policy) after the prefill"

    def __post_init__(self):
        if self.chunk < 1 or self.system < 0 or self.quoted < 0:
            raise ValueError(
                "the context is repeated in chunks of at least 1 token, behind 0 or more of the system prompt, quoting 0 or more; "
                f"got chunk={self.chunk}, system={self.system}, quoted={self.quoted}"
            )

    @property
    def key(self) -> str:
        asked = zlib.crc32(repr((self.quoted, self.first, self.further)).encode())
        own = "_own" if self.own else ""
        return f"{self.name}_{self.chunk}_{self.system}_{asked:08x}{own}_{self.need.key}"

    def serves(self, other: Need) -> bool:
        return self.key == other.key

    def spans(self, length: int) -> list[Span]:
        """The chunks of a prompt."""
        starts = range(self.system, length, self.chunk)
        return [(start, min(start + self.chunk, length)) for start in starts] or [(0, length)]

    def tokens(self, ids: Sequence[int], span: Span, requests: Requests) -> list[int]:
        """What is read for one chunk of a prompt."""
        start, stop = span
        if start <= self.system:
            return [*requests[0], *ids[start:stop]]
        return [*requests[1], *ids[start - min(self.quoted, self.chunk) : start], *ids[start:stop]]

    def requests(self, lm: LanguageModel) -> Requests:
        """Ids of the requests, without what a tokenizer puts around every text."""
        texts = ((self.first, FIRST), (self.further, FURTHER))
        return tuple(ids_inside(lm, text) if ids is None else ids for ids, text in texts)

    def record(self, lm: LanguageModel, pre: Prefilled) -> Prefilled:
        """The prefilled prompts with this evidence. Raises ValueError where a prompt and a chunk exceed the model's context."""
        check_model(lm, pre)
        requests = self.requests(lm)
        passes = [self._passes(row, requests) for row in pre.rows]
        for r, (length, of_row) in enumerate(zip(pre.lengths, passes, strict=True)):
            for _, ids in of_row:
                check_row(lm.decoder, r, ids, length)
        trim()
        rows = (self._repeated(lm, row, of_row) for row, of_row in zip(pre.rows, passes, strict=True))
        return with_rows(pre, tuple(rows), (self,))

    def _passes(self, row: PrefilledRow, requests: Requests) -> list[tuple[Span, list[int]]]:
        length = int(row.length[0])
        ids = row.ids[:length].tolist()
        return [(span, self.tokens(ids, span, requests)) for span in self.spans(length)]

    def _repeated(self, lm: LanguageModel, row: PrefilledRow, passes: list[tuple[Span, list[int]]]) -> PrefilledRow:
        for span, ids in passes:
            asked = len(ids) - (span[1] - span[0]) if self.own else 0
            row = probe_row(lm, row, ids, (self,), span=span, sinks=self.system, asked=asked)
        return row
