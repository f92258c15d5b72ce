"""The dense view of a layer that policies see, the same after prefill and while decoding."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float32, Int32, PyTree, Shaped

from kvjax.evidence import Evidence
from kvjax.types import Keys, Layer, Mask, Positions, Scores, Values


@struct.dataclass
class LayerView:
    """One layer's slots, padded to the widest head.

    Invariants: `pos` is the original position of each valid slot; everything at invalid slots is unspecified and must be masked.
    While decoding, k and v are gathered from the pool only if a stage reads them (the compiler drops the gather otherwise).

    Attributes:
        k, v: keys (rotated) and values.
        pos: original positions.
        valid: which slots hold a token.
        length: int32 [b], tokens of text so far (the next token's position), never the number of slots.
        state: what the stage that is given the view keeps by slot, a pytree of arrays [b, h, n, ...]; () for none.
        bias: what is added to each slot's attention scores; None where no stage keeps one.
        ids: token ids by slot, after prefill; None where they are not known.
        since: int32 [b], position of the first token just seen; None after a prompt, where that is 0.
        scored: the scorer's state, for mergers that name a scorer (`Merger.state_of`).
        seen: what the merger's needs recorded of the prompt, for mergers that have needs.
        prompt: int32 [b], tokens of the prompt.
    """

    k: Keys | None
    v: Values | None
    pos: Positions
    valid: Mask
    length: Int32[Array, " b"]
    state: PyTree = ()
    bias: Scores | None = None
    ids: Int32[Array, "b n"] | None = None
    since: Int32[Array, " b"] | None = None
    scored: PyTree = ()
    seen: Evidence | None = None
    prompt: Int32[Array, " b"] | None = None

    @classmethod
    def of_prompt(
        cls, length: Int32[Array, " b"], shape: tuple[int, int, int], *, k: Keys | None = None, v: Values | None = None,
        state: PyTree = (), ids: Int32[Array, "b n"] | None = None, pos: Int32[Array, "b n"] | None = None,
    ) -> "LayerView":  # fmt: skip
        """A prompt's slots [b, h, n], each holding its own token up to `length`, or those at `pos` where others have left."""
        at = jnp.arange(shape[2], dtype=jnp.int32) if pos is None else pos[:, None]
        pos = jnp.broadcast_to(at, shape)
        valid = pos < length[:, None, None]
        return cls(k=k, v=v, pos=pos, valid=valid, length=length, state=state, ids=ids, prompt=length)

    def held(self) -> Int32[Array, "b h"]:
        """Slots in use, by head."""
        return self.valid.sum(-1).astype("int32")


@struct.dataclass
class Ranking:
    """What allocators and selectors rank: all layers at once, or a few of them where a prompt is compressed as it is read.

    Attributes:
        scores: higher is kept first; unspecified where not valid.
        protected: slots kept whatever their score (sinks, recent window).
        valid: slots that hold a token.
        pos: original positions.
        second: a second ranking, for selectors of two stages; () where the scorer has none.
        measured: what the allocator measured of each layer, stacked [l, b, ...].
        first: which layer of the model the first of these is.   of: layers of the model; None: these are all.
    """

    scores: Float32[Array, "l b h n"]
    protected: Bool[Array, "l b h n"]
    valid: Bool[Array, "l b h n"]
    pos: Int32[Array, "l b h n"]
    second: PyTree = ()
    measured: PyTree = ()
    first: Layer = 0
    of: int | None = struct.field(pytree_node=False, default=None)

    @property
    def layers(self) -> int:
        """Layers of the model."""
        return self.valid.shape[0] if self.of is None else self.of

    def part(self, layers: np.ndarray) -> "Ranking":
        """Some of these layers, ranked as if they were the whole model."""
        dense = {name: getattr(self, name)[layers] for name in ("scores", "protected", "valid", "pos")}
        second, measured = jax.tree.map(lambda x: x[layers], (self.second, self.measured))
        return Ranking(**dense, second=second, measured=measured)

    def own(self, of_model: Shaped[Array, "m *rest"]) -> Shaped[Array, "l *rest"]:
        """What is known of every layer of the model, of these layers alone."""
        return of_model if self.of is None else lax.dynamic_slice_in_dim(of_model, self.first, self.valid.shape[0])
