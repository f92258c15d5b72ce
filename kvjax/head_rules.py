"""Rules of what a head keeps, and which rule recovers enough of a head's attention (FastGen)."""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float32, Int32

from kvjax.evidence import Evidence
from kvjax.evidence.attention_statistics import AttentionStatistics
from kvjax.evidence.column_sums import ColumnSums
from kvjax.evidence.near_sum import NearSum, window_width
from kvjax.evidence.need import Need
from kvjax.evidence.of_group import OfGroupMean
from kvjax.evidence.token_in import TokenIn
from kvjax.kernels.select_top import ordered, select_top
from kvjax.ranges import Whole
from kvjax.types import Number
from kvjax.view import LayerView

#: Slots of a head that is never cut.
UNBOUNDED = 1 << 30


@struct.dataclass
class Rule:
    """Which tokens a head keeps beside the first and the special ones, all static.

    Attributes:
        punctuation: whether punctuation stays.   full: whether everything stays.
        heavy: share of the length that goes to the tokens most attended to.   window: share that goes to the last ones.
    """

    punctuation: bool = struct.field(pytree_node=False, default=False)
    heavy: float = struct.field(pytree_node=False, default=0.0)
    window: float = struct.field(pytree_node=False, default=0.0)
    full: bool = struct.field(pytree_node=False, default=False)


@struct.dataclass
class Fill:
    """What a rule makes of a prompt.

    Attributes:
        recovery: mean over the queries of the attention that its tokens get.
        members: slots it keeps of the prompt.   stay: those that never go.
        budget: slots of a head while decoding.   recent: last tokens that do not go.
    """

    recovery: Float32[Array, "*r b h"]
    members: Bool[Array, "*r b h n"]
    stay: Bool[Array, "*r b h n"]
    budget: Int32[Array, "*r b h"]
    recent: Int32[Array, "*r b h"]


def occurrences(ids: Int32[Array, "b n"], length: Int32[Array, " b"], sequence: tuple[int, ...]) -> Bool[Array, "b n"]:
    """Positions inside an exact occurrence of the sequence."""
    at = jnp.arange(ids.shape[1], dtype=jnp.int32)
    starts = at + len(sequence) <= length[:, None]
    for j, token in enumerate(sequence):
        starts &= jnp.roll(ids, -j, 1) == token
    return jnp.stack([jnp.roll(starts, j, 1) for j in range(len(sequence))]).any(0)


def heaviest(cum: Float32[Array, "b h n"], available: Bool[Array, "b h n"], wanted: Float32[Array, " b"]) -> Bool[Array, "b h n"]:
    """The ceil(min(wanted, #available)) columns with the highest means among those available."""
    count = jnp.minimum(jnp.ceil(wanted[:, None] * (1 - 1e-6) - 1e-6).astype(jnp.int32), available.sum(-1))
    return select_top(jnp.where(available, ordered(cum), jnp.uint32(0)), count)


@struct.dataclass
class RuleList:
    """The rules of a policy, cheapest first: a head gets the first whose recovery reaches the threshold, else the first of all.

    Args:
        rules: the rules.   special: sequences of token ids that always stay.   punctuation: ids of punctuation.
        sinks: first tokens that always stay.   threshold: T.   new: tokens to be generated, which shares of the length count.
        split: whether recoveries are taken with the prompt's length alone, as the release does.
    """

    rules: tuple[Rule, ...]
    special: tuple[tuple[int, ...], ...] = struct.field(pytree_node=False, default=())
    punctuation: tuple[int, ...] = struct.field(pytree_node=False, default=())
    sinks: Whole = struct.field(pytree_node=False, default=4)
    threshold: Number = 0.9
    new: Number = 0
    split: bool = struct.field(pytree_node=False, default=False)

    @property
    def needs(self) -> frozenset[Need]:
        windows = {rule.window for rule in self.rules if rule.window}
        return frozenset({ColumnSums(), self.marks, *map(self.near, windows)})

    @property
    def marks(self) -> TokenIn:
        """The need that tells punctuation."""
        return TokenIn(self.punctuation)

    def near(self, share: float) -> AttentionStatistics:
        """The need that tells what a window recovers."""
        return AttentionStatistics(OfGroupMean(NearSum(share=share, further=0 if self.split else self.new)))

    def chosen(self, view: LayerView, evidence: Evidence) -> tuple[Int32[Array, "b h"], Fill]:
        """Each head's rule, and what it makes of the prompt."""
        fills = [self.fill(rule, view, evidence) for rule in self.rules]
        chosen = jnp.argmax(jnp.stack([fill.recovery for fill in fills]) >= self.threshold, 0).astype(jnp.int32)
        return chosen, _of_chosen(fills, chosen)

    def fill(self, rule: Rule, view: LayerView, evidence: Evidence) -> Fill:
        """What one rule makes of every head."""
        n, columns = view.length, evidence.column_sums()
        extent = n + self.new
        stay = self.kinds(rule, view, evidence)
        within = self._columns(rule, stay, view, columns, n if self.split else extent)
        near = evidence.of(self.near(rule.window))[:, :, 0] if rule.window else 0.0
        received = jnp.where(view.valid, jnp.where(within, columns, near), 0.0).sum(-1) / n[:, None]
        recovery = jnp.ones_like(received) if rule.full else received
        members = self._columns(rule, stay, view, columns, extent) | _last(rule, view, extent)
        members = view.valid & (rule.full | members)
        recent = jnp.round(rule.window * extent).astype(jnp.int32)
        counted = self.sinks + self._counted(rule, view, evidence) + recent + jnp.round(rule.heavy * extent).astype(jnp.int32)
        budget = jnp.maximum(counted[:, None], members.sum(-1)).astype(jnp.int32)
        budget = jnp.full_like(budget, UNBOUNDED) if rule.full else budget
        return Fill(recovery, members, stay, budget, jnp.broadcast_to(recent[:, None], budget.shape))

    def kinds(self, rule: Rule, view: LayerView, evidence: Evidence) -> Bool[Array, "b h n"]:
        """First, special and, where the rule has it, punctuation tokens."""
        marked = self._special(view)
        marked = marked | evidence.of(self.marks) if rule.punctuation else marked
        return view.valid & ((view.pos < self.sinks) | marked[:, None])

    def _special(self, view: LayerView) -> Bool[Array, "b n"]:
        found = [occurrences(view.ids, view.length, sequence) for sequence in self.special]
        return jnp.stack(found).any(0) if found else jnp.zeros(view.ids.shape, bool)

    def _counted(self, rule: Rule, view: LayerView, evidence: Evidence) -> Int32[Array, " b"]:
        """Special tokens and punctuation, counted one by one."""
        real = view.valid[:, 0]
        special = (self._special(view) & real).sum(-1)
        return special + (evidence.of(self.marks) & real).sum(-1) if rule.punctuation else special

    def _columns(self, rule: Rule, stay: Bool[Array, "b h n"], view: LayerView, sums: Float32[Array, "b h n"], extent: Array):
        """Columns that every query sees: those that stay and the heaviest of what the last row of the others leaves out."""
        if not rule.heavy:
            return stay
        cum = sums / jnp.maximum(view.length[:, None, None] - view.pos, 1)
        return stay | heaviest(cum, view.valid & ~stay & ~_last(rule, view, extent), rule.heavy * extent.astype(jnp.float32))


def _last(rule: Rule, view: LayerView, extent: Int32[Array, " b"]) -> Bool[Array, "b h n"]:
    """The window of the last row."""
    if not rule.window:
        return jnp.zeros(view.valid.shape, bool)
    return view.pos >= (view.length - window_width(extent, rule.window))[:, None, None]


def _of_chosen(fills: list[Fill], chosen: Int32[Array, "b h"]) -> Fill:
    """Of each head the fill of its rule."""

    def pick(*x: Array) -> Array:
        stacked = jnp.stack(x)
        index = chosen.reshape(1, *chosen.shape, *(1,) * (stacked.ndim - 3))
        return jnp.take_along_axis(stacked, index, 0)[0]

    return jax.tree.map(pick, *fills)
