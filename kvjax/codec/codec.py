"""What a slot's bytes are: numbers in, rows of a pool out, and back."""

from fractions import Fraction
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float32, Int32, PyTree

from kvjax.codec.decoded import biased, decoded_scores, decoded_sum
from kvjax.codec.layer_regions import LayerRegions
from kvjax.evidence import Evidence
from kvjax.stage import Stage
from kvjax.types import Keys, Mask, Queries


class Codec(Stage):
    """Keys or values [b, h, n, d] as rows, and rows as numbers: a frozen pytree like every stage.

    Rows are an array, or a pytree of arrays, with one row for each slot, or for each page of `page` slots what these share.
    """

    #: Whether rows are numbers that attention kernels read as they are.
    dense: ClassVar[bool] = False
    #: Whether the i-th slots of all heads are coded together, so that slots are sorted before they are coded.
    across_heads: ClassVar[bool] = False
    #: Whether they are one code, so that all heads of a layer must hold as many slots, and none moves by itself.
    together: ClassVar[bool] = False

    @property
    def page(self) -> int:
        """Slots that are coded together; 1 where each is by itself."""
        return 1

    def rows(self, slots: int, d: int, dtype: DTypeLike) -> PyTree:
        """An empty pool of `slots` slots for numbers [.., d] that come in `dtype`; `slots` are whole pages."""
        raise NotImplementedError(f"{type(self).__name__} must define rows(slots, d, dtype)")

    def fit(self, x: Keys, valid: Mask) -> PyTree:
        """What is fitted on a layer of one prompt, leaves [b, ...]; () for nothing."""
        del x, valid
        return ()

    def fit_to(self, x: Keys, valid: Mask, stays: Mask, evidence: Evidence) -> PyTree:
        """`fit` for codecs that read what the layer recorded of the prompt (`needs`), or slots that this codec does not store.

        x holds all tokens of the prompt, `evidence.length` of them real; `stays` are those that are not evicted, `valid` those of
        them that this codec stores.
        """
        del stays, evidence
        return self.fit(x, valid)

    @property
    def fitted(self) -> bool:
        """Whether anything is fitted on a prompt."""
        return (type(self).fit, type(self).fit_to) != (Codec.fit, Codec.fit_to)

    def encode(self, x: Keys, pos: Int32[Array, "b h n"] | None = None, params: PyTree = ()) -> PyTree:
        """Numbers [b, h, n, d] of tokens at these positions as rows, leaves [b, h, n / page, ...]."""
        raise NotImplementedError(f"{type(self).__name__} must define encode(x, pos, params)")

    def decode(self, rows: PyTree, dtype: DTypeLike, params: PyTree = ()) -> Keys:
        """Rows, leaves [b, h, n / page, ...], as numbers [b, h, n, d] in `dtype`."""
        raise NotImplementedError(f"{type(self).__name__} must define decode(rows, dtype, params)")

    def scores(self, q: Queries, at: LayerRegions, params: PyTree = ()) -> Float32[Array, "b h g t n"]:
        """q·k / sqrt(d) over every region padded to `at.padded_slots`, biases added; -inf where a query sees no slot."""
        return biased(decoded_scores(self, q, at, params), at.bias, at.start)

    def weighted_sum(
        self, at: LayerRegions, weights: Float32[Array, "b h g t n"], d: int, params: PyTree = ()
    ) -> Float32[Array, "b h g t d"]:
        """Σ_j weights_j · v_j over the slots of every region."""
        return decoded_sum(self, at, weights, params, d)

    def bits_a_number(self, d: int, dtype: DTypeLike = jnp.float16) -> Fraction:
        """Bits of a stored number: whatever its rows take, over the numbers they hold."""
        rows = jax.eval_shape(lambda: jax.tree.leaves(self.rows(self.page, d, dtype)))
        return Fraction(8 * sum(x.size * x.dtype.itemsize for x in rows), self.page * d)
