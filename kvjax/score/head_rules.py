"""Each head's own rule: what it keeps of the prompt, and which token goes for a new one (FastGen)."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float32, Int32

from kvjax.evidence import Evidence, Need
from kvjax.head_rules import RuleList
from kvjax.score.per_slot import per_slot
from kvjax.stage import Scorer
from kvjax.types import Scores
from kvjax.view import LayerView


@struct.dataclass
class Seen:
    """By slot: the sum and number of its observations, whether it stays, and its head's rule.

    `stay` is 0 for tokens that may go, 1 for those of the prompt that do not, 2 for later punctuation. `rule` counts from 1, and is
    0 in slots of new tokens; `recent` is the head's window.
    """

    total: Float32[Array, "*x"]
    count: Int32[Array, "*x"]
    stay: Int32[Array, "*x"]
    rule: Int32[Array, "*x"]
    recent: Int32[Array, "*x"]


@struct.dataclass
class HeadRules(Scorer):
    """Under a head's rule: +inf for tokens that stay, -inf for tokens of the prompt that are not in it.

    Others, in a rule with heavy hitters: their mean observation, the prompt's column mean being the first; in one with a window
    alone: the newest go last; in one with neither: what came first stays. The second ranking says which slots stay.
    """

    gives_second: ClassVar[type | None] = Array

    rules: RuleList

    @property
    def needs(self) -> frozenset[Need]:
        return self.rules.needs

    def init(self, shape: tuple[int, int, int]) -> Seen:
        zeros = jnp.zeros(shape, jnp.int32)
        return Seen(total=jnp.zeros(shape, jnp.float32), count=zeros, stay=zeros, rule=zeros, recent=zeros)

    def observe(self, view: LayerView, evidence: Evidence) -> Seen:
        return self._of_prompt(view, evidence) if view.since is None else self._after(view, evidence)

    def _of_prompt(self, view: LayerView, evidence: Evidence) -> Seen:
        chosen, fill = self.rules.chosen(view, evidence)

        def everywhere(x):
            return jnp.broadcast_to(x[..., None], view.pos.shape)

        return Seen(
            total=evidence.column_sums() / jnp.maximum(view.length[:, None, None] - view.pos, 1),
            count=jnp.ones_like(view.pos),
            stay=fill.stay.astype(jnp.int32),
            rule=everywhere(chosen + 1),
            recent=everywhere(fill.recent),
        )

    def _after(self, view: LayerView, evidence: Evidence) -> Seen:
        old = view.state

        def of_head(x):
            return jnp.broadcast_to(jnp.where(view.valid, x, 0).max(-1, keepdims=True), x.shape)

        rule = of_head(old.rule)
        marks = per_slot(view, jnp.zeros_like(old.stay), evidence.of(self.rules.marks)[:, None].astype(jnp.int32))
        kept = (marks > 0) & self._flag("punctuation", rule)
        rows = view.length[:, None, None] - jnp.maximum(view.pos, view.since[:, None, None])
        return Seen(
            total=old.total + evidence.column_sums(),
            count=old.count + rows,
            stay=jnp.where(kept, 2, old.stay),
            rule=rule,
            recent=of_head(old.recent),
        )

    def _flag(self, name: str, rule: Int32[Array, "b h n"]) -> Bool[Array, "b h n"]:
        """Whether the rule of each slot's head has something."""
        return jnp.asarray([bool(getattr(x, name)) for x in self.rules.rules])[jnp.maximum(rule - 1, 0)]

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        seen = view.state
        if view.since is None:
            members = self.rules.chosen(view, evidence)[1].members
            u = jnp.where(members, seen.total, -jnp.inf)
        else:
            heavy, window = self._flag("heavy", seen.rule), self._flag("window", seen.rule)
            age = jnp.where(window, view.pos, -view.pos).astype(jnp.float32)
            u = jnp.where(heavy, seen.total / jnp.maximum(seen.count, 1), age)
            recent = window & (view.pos >= view.length[:, None, None] - seen.recent)
            u = jnp.where(recent, jnp.inf, u)
        return jnp.where(seen.stay > 0, jnp.inf, u)

    def second(self, view: LayerView, evidence: Evidence, scores: Scores) -> Int32[Array, "b h n"]:
        del evidence, scores
        return view.state.stay
