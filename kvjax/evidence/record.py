"""What one layer has recorded, and how blocks of tokens are folded into it."""

from collections.abc import Iterable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Float32, Int32, PyTree

from kvjax.evidence.column_sums import ColumnSums
from kvjax.evidence.need import Need, Shape, Tokens
from kvjax.evidence.per_token import HiddenStates
from kvjax.evidence.query_moments import Moments, QueryMoments
from kvjax.evidence.reduce import Jointly
from kvjax.evidence.window_queries import WindowQueries
from kvjax.protocols import Rope
from kvjax.types import Layer

#: What the published methods read, recorded by `kvjax.prefill` unless told otherwise.
STANDARD: frozenset[Need] = frozenset({WindowQueries(64), QueryMoments(4), ColumnSums()})


@struct.dataclass
class Evidence:
    """What one layer has recorded.

    Attributes:
        data: one entry for each recorded need, by its key.
        length: int32 [b], tokens of text seen so far; the next query stands at this position.
        rope: the model's rotary embedding, for scorers that reason about queries at other positions.
        window: int32 [b], the layer's sliding window; far beyond every text for layers without one beside layers that have one,
            None where no layer has.
    """

    data: dict[str, object]
    length: Int32[Array, " b"]
    rope: Rope | None = struct.field(pytree_node=False)
    window: Int32[Array, " b"] | None = None

    def of(self, need: Need) -> PyTree:
        """What was recorded for a need."""
        return self.data[need.key]

    def window_queries(self, size: int) -> Float[Array, "b h g w d"]:
        """The last `size` queries, oldest first."""
        return self.data[WindowQueries().key][..., -size:, :]

    def column_sums(self) -> Float32[Array, "b h n"]:
        """Mass received, averaged over the query heads of a KV head."""
        return self.column_sums_by_head().mean(2)

    def column_sums_by_head(self) -> Float32[Array, "b h g n"]:
        """Mass received from each query head."""
        return self.data[ColumnSums().key]

    def moments(self, skip: int) -> Moments:
        """Moments of the queries behind the first `skip` positions."""
        return self.data[QueryMoments(skip).key]

    def hidden_states(self) -> Float[Array, "b n e"]:
        """Normed inputs of the layer's attention."""
        return self.data[HiddenStates().key]


def empty(needs: Iterable[Need], shape: Shape, rope: Rope | None, window: int | None = None) -> Evidence:
    """Evidence before the first token; the window is of `reach`."""
    data = {need.key: need.empty(shape) for need in needs}
    reached = None if window is None else jnp.full(shape.b, window, jnp.int32)
    return Evidence(data=data, length=jnp.zeros(shape.b, jnp.int32), rope=rope, window=reached)


def reach(windows: Sequence[int | None], layer: int) -> int | None:
    """A layer's sliding window as a number, so that all layers share programs; None where no layer has one."""
    far = np.iinfo(np.int32).max
    return None if set(windows) <= {None} else far if windows[layer] is None else windows[layer]


def ordered(needs: Iterable[Need]) -> tuple[Need, ...]:
    """The needs in an order that does not depend on how they were asked for."""
    return tuple(sorted(needs, key=_name))


def of_layer(needs: Iterable[Need], layer: Layer) -> tuple[Need, ...]:
    """The needs as one layer records them, without those of the whole model."""
    return tuple(need.at(layer) for need in ordered(needs) if not need.whole_model)


def of_model(needs: Iterable[Need]) -> tuple[Need, ...]:
    """The needs that are of the model's output."""
    return tuple(need for need in ordered(needs) if need.whole_model)


def _name(need: Need) -> str:
    return need.key


def observe(evidence: Evidence, needs: Iterable[Need], block: Tokens) -> Evidence:
    """Fold one block of tokens into every need given."""
    return evidence.replace(data=folded(evidence.data, tuple(needs), block), length=block.offset + block.count)


def folded(data: Mapping[str, PyTree], needs: Sequence[Need], block: Tokens) -> dict[str, PyTree]:
    """What was recorded, after one more block; rows of attention are computed once for all needs that reduce them."""
    found = {}
    joint = [need for need in needs if need.reduction is not None]
    if len(joint) > 1:
        states = block.reduced(Jointly(tuple(need.reduction for need in joint)))
        found = {need.key: need.reduction.join(data[need.key], state) for need, state in zip(joint, states, strict=True)}
    return found | {need.key: need.observe(data[need.key], block) for need in needs if need.key not in found}


def union(*groups: Iterable[Need]) -> frozenset[Need]:
    """The smallest set of needs that serves all of `groups`: of several windows only the longest."""
    everything = frozenset().union(*groups)
    left = frozenset(n for n in everything if not any(m != n and m.serves(n) for m in everything))
    if len({need.key for need in left}) < len(left):
        raise ValueError(f"needs that differ only in numbers cannot be recorded together: {', '.join(map(str, ordered(left)))}")
    return left


def missing(recorded: Iterable[Need], wanted: Iterable[Need]) -> frozenset[Need]:
    """The wanted needs that nothing recorded serves."""
    return frozenset(w for w in wanted if not any(r.serves(w) for r in recorded))


def restrict(evidence: Evidence, recorded: Iterable[Need], wanted: Iterable[Need]) -> Evidence:
    """Only what `wanted` goes on reading while decoding: the fold's carried part, windows cut to the size wanted."""
    carried = [need for need in wanted if need.carried]
    server = {need: next(r for r in recorded if r.serves(need)) for need in carried}
    return evidence.replace(data={n.key: server[n].serve(evidence.data[server[n].key], n) for n in carried})


def concatenate(rows: Sequence[Evidence]) -> Evidence:
    """The evidence of several rows as one batch."""
    return jax.tree.map(lambda *x: jnp.concatenate(x), *rows)
