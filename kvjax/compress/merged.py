"""A layer's keys and values after its merges, with what travels beside them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32, PyTree

from kvjax.compress.decision import Decision
from kvjax.encode.positions import PositionPolicy
from kvjax.prefill.prefilled import PrefilledRow
from kvjax.reach import in_reach
from kvjax.stage import Merger
from kvjax.types import Keys, Values, size_class
from kvjax.view import LayerView


class Unmerged(NamedTuple):
    """What is packed of a layer where nothing is merged; a `LayerView` has the same fields where something is."""

    k: Keys
    v: Values
    scored: PyTree
    state: PyTree = ()
    bias: PyTree = None


def merged(
    merge: Merger, k: Keys, row: PrefilledRow, decision: Decision, layer: int, positions: PositionPolicy
) -> tuple[Unmerged | LayerView, PyTree]:
    """A layer's view after its merges, and the merger's memory; nothing is computed where nothing is rewritten.

    What the layer's sliding window has left behind is merged into nothing.
    """
    v, scored = row.v[layer], decision.state[layer] if decision.state else ()
    if not merge.rewrites:
        return Unmerged(k, v, scored), ()
    keep, evidence = decision.in_all, row.evidence[layer]
    merge = merge if type(merge).sized is Merger.sized else merge.sized(_widest(keep.sum(-1), k.shape[2]))
    given = () if merge.state_of is None else scored
    window = None if positions.ranked else evidence.window
    seen = evidence.replace(data={need.key: evidence.data[need.key] for need in merge.needs}) if merge.needs else None
    view, memory = _rewritten(
        merge, k, v, row.length, row.pos, keep, decision.scores, given, seen, window, layer=np.int32(layer)
    )
    return view if merge.state_of is not None else view.replace(scored=scored), memory


def _widest(count: Int32[Array, "l b h"], n: int) -> int:
    """A size class of the slots that heads keep; all n of a prompt inside a traced program, which cannot know."""
    return n if isinstance(count, jax.core.Tracer) else min(n, size_class(int(np.asarray(count).max()), steps=8))


@jax.jit
def _rewritten(merge, k, v, length, pos, keep, scores, scored, seen, window, *, layer):
    shape = k.shape[:3]
    view = LayerView.of_prompt(length, shape, k=k, v=v, state=merge.init(shape), pos=pos).replace(scored=scored, seen=seen)
    view = view.replace(valid=view.valid & (keep[layer] | in_reach(view.pos, length, window)))
    if merge.biased:
        view = view.replace(bias=jnp.zeros(shape, jnp.float32))
    return merge(view, keep[layer], scores[layer], merge.begin(shape[0]))
