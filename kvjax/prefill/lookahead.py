"""A second pass of a few learned tokens that stand for the answer to come (LookaheadKV)."""

from typing import ClassVar

import numpy as np
from flax import struct
from jaxtyping import PyTree

from kvjax.cache.heap import trim
from kvjax.evidence import ColumnSums, Need, Probed
from kvjax.evidence.gate_values import origin_of
from kvjax.gates.soft_tokens import SoftTokens, check_soft_tokens
from kvjax.prefill.prefilled import Prefilled
from kvjax.prefill.probe import probe_row, with_rows
from kvjax.prefill.probe_checks import check_model, check_row
from kvjax.protocols import LanguageModel
from kvjax.types import Table, later_table


@struct.dataclass
class LookaheadTokens(Probed):
    """Attention that learned tokens at positions n, n + 1, ... give the prompt, summed: `kvjax.second_pass` records it.

    They attend to the prompt and, causally, to each other: what they give the prompt does not sum to 1. They are read through
    W + (alpha / r) B A in every linear map; the prompt was not. Nothing of them stays, and nothing of the prompt changes.

    Args:
        weights: as `kvjax.gates.init_soft_tokens` gives them.
        origin: where they came from; two needs of one origin are one need.   alpha: scale of the updates.

    Source: LookaheadKV, arXiv 2603.10899.
    """

    need: Need = ColumnSums()
    name: str = struct.field(pytree_node=False, default="lookahead")
    weights: Table = later_table()
    origin: str = struct.field(pytree_node=False, default="")
    alpha: float = struct.field(pytree_node=False, default=32.0)

    advice: ClassVar[str] = "run kvjax.second_pass(lm, pre, policy) after the prefill"

    @classmethod
    def of(cls, weights: PyTree, alpha: float = 32.0, origin: str = "") -> "LookaheadTokens":
        """With an origin made from the weights where none is given. Raises ValueError for what are no learned tokens."""
        found = set(weights) if isinstance(weights, dict) else type(weights).__name__
        if found != {"tokens", "layers"} or np.ndim(weights["tokens"]) != 2:
            raise ValueError(
                "learned tokens are {'tokens': [p e], 'layers': {...}}, such as kvjax.gates.init_soft_tokens(lm, key) makes; "
                f"got {found}"
            )
        return cls(weights=weights, alpha=float(alpha), origin=origin or origin_of(weights))

    @property
    def size(self) -> int:
        """Learned tokens."""
        return self.weights["tokens"].shape[0]

    @property
    def key(self) -> str:
        return f"{self.name}_{self.origin}_{self.alpha:g}_{self.need.key}"

    def serves(self, other: Need) -> bool:
        return self.key == other.key

    def record(self, lm: LanguageModel, pre: Prefilled) -> Prefilled:
        """The prefilled prompts with this evidence.

        Raises:
            ValueError: weights of another model; a prompt that exceeds the model's context together with the tokens.
        """
        check_model(lm, pre)
        check_soft_tokens(lm, self.weights)
        ids, soft = [0] * self.size, SoftTokens.of(self.weights, self.alpha)
        for r, length in enumerate(pre.lengths):
            check_row(lm.decoder, r, ids, length)
        trim()
        sums = self.replace(weights=None)  # what is recorded is a sum of attention, whoever attends
        rows = tuple(probe_row(lm, row, ids, (sums,), soft=soft) for row in pre.rows)
        return with_rows(pre, rows, (self,))
