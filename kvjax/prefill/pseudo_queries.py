"""A second pass of a few made-up tokens at the positions to come: what queries there look at, whatever they say."""

from collections.abc import Sequence
from itertools import cycle, islice
from typing import ClassVar

from flax import struct

from kvjax.cache.heap import trim
from kvjax.evidence import ColumnSums, Need, Probed
from kvjax.prefill.prefilled import Prefilled
from kvjax.prefill.probe import probe_row, with_rows
from kvjax.prefill.probe_checks import check_model, check_row
from kvjax.prefill.text_inside import ids_inside
from kvjax.protocols import LanguageModel
from kvjax.ranges import Size, Whole

#: What follows the prompt's first tokens, over and over until there are enough.
SUFFIX = "\n\nAnswer the question above from the text, step by step, and give the answer in the end."


@struct.dataclass
class PseudoQueries(Probed):
    """Attention that `size` pseudo tokens at positions n, n + 1, ... give the prompt, summed: `kvjax.second_pass` records it.

    They are the prompt's first `front` tokens and a generic suffix, and attend to the prompt and, causally, to each other: what
    they give the prompt does not sum to 1. Nothing of them stays.

    Args:
        size: pseudo tokens.   front: how many of them are the prompt's first.
        suffix: ids of the others, repeated until there are enough; None: SUFFIX by the model's tokenizer, without what
            that puts around every text.

    Source: DapQ, arXiv 2603.11564. Differs: the wording of the suffix.
    """

    need: Need = ColumnSums()
    name: str = struct.field(pytree_node=False, default="pseudo_queries")
    size: Size = struct.field(pytree_node=False, default=32)
    front: Whole = struct.field(pytree_node=False, default=4)
    suffix: tuple[int, ...] | None = struct.field(pytree_node=False, default=None)

    advice: ClassVar[str] = "run kvjax.second_pass(lm, pre, policy) after the prefill"

    def __post_init__(self):
        if not 0 <= self.front <= self.size or self.size < 1 or self.suffix == ():
            raise ValueError(
                f"pseudo queries are at least one token, 0 to all of them from the prompt's front, and a suffix that is not empty; "
                f"got size={self.size}, front={self.front}, suffix={self.suffix}"
            )

    @property
    def key(self) -> str:
        of = "" if self.suffix is None else "_".join(map(str, self.suffix))
        return f"{self.name}_{self.size}_{self.front}_{of}_{self.need.key}"

    def serves(self, other: Need) -> bool:
        return self.key == other.key

    def tokens(self, ids: Sequence[int], suffix: Sequence[int]) -> list[int]:
        """The pseudo tokens of a prompt."""
        first = list(ids[: self.front])
        return first + list(islice(cycle(suffix), self.size - len(first)))

    def record(self, lm: LanguageModel, pre: Prefilled) -> Prefilled:
        """The prefilled prompts with this evidence. Raises ValueError where a prompt and the tokens exceed the model's context."""
        check_model(lm, pre)
        suffix = ids_inside(lm, SUFFIX) if self.suffix is None else self.suffix
        probes = [self.tokens(row.ids[:n].tolist(), suffix) for row, n in zip(pre.rows, pre.lengths, strict=True)]
        for r, (length, ids) in enumerate(zip(pre.lengths, probes, strict=True)):
            check_row(lm.decoder, r, ids, length)
        trim()
        rows = (probe_row(lm, row, ids, (self,)) for row, ids in zip(pre.rows, probes, strict=True))
        return with_rows(pre, tuple(rows), (self,))
