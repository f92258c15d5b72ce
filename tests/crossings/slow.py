"""A policy written out: dense rows of slots in position order, NumPy attention over them, the stages called on what they hold.

Nothing here is packed, ragged or moved in place: every layer is one table [1, h, width] of slots, cut and closed up after each
eviction. Evidence of a decoded token is made from its float64 attention rows.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kvjax import evidence as ev
from kvjax.allocate import Uniform
from kvjax.decode.evict.reallocate import bounded
from kvjax.evidence.reduce import RowsAt
from kvjax.view import LayerView, Ranking
from tests.eager import run_steps
from tests.reference.softmax import softmax

_observe = jax.jit(lambda score, view, evidence: score.observe(view, evidence))
_merge = jax.jit(lambda merge, view, keep, scores, memory: merge(view, keep, scores, memory))
_share = jax.jit(lambda allocate, ranking, mean: allocate(ranking, mean))
_choose = jax.jit(lambda select, ranking, budget: select(ranking, budget))


@jax.jit
def _rate(score, allocate, view, evidence):
    scores = score.score(view, evidence)
    return scores, score.second(view, evidence, scores), allocate.measure(view, evidence)


@dataclass
class Block:
    """One decoded token as needs see it: its attention rows over a layer's slots, in the order of the table."""

    inputs: Any
    ids: Any
    out: Any
    offset: Any
    count: Any
    probabilities: Any
    keys: Any
    steps: int
    prompt: Any

    def column_sums(self):
        return self.probabilities.sum(3)

    def reduced(self, reduction):
        p, keys = self.probabilities, self.keys
        seen = jnp.broadcast_to((keys >= 0)[:, :, None, None], p.shape)
        where = RowsAt(keys=jnp.maximum(keys, 0), steps=jnp.full((1, 1), self.steps, jnp.int32), prompt=self.prompt)
        return reduction.of_rows_at(p, self.offset[:, None], seen, where)


@dataclass
class Table:
    """One layer's slots in position order, [1, h, width ...] leaves: k, v, bias, the scorer's state, the merger's; held [h]."""

    k: Any
    v: Any
    pos: Any
    bias: Any
    score: Any
    merge: Any
    held: np.ndarray

    @property
    def valid(self) -> np.ndarray:
        return np.arange(self.pos.shape[2]) < self.held[None, :, None]

    def _changed(self, f, held: np.ndarray) -> "Table":
        """f of every array, states as arrays of jax again."""
        dense = (f(np.asarray(x)) for x in (self.k, self.v, self.pos, self.bias))
        return Table(*dense, *jax.tree.map(lambda x: jnp.asarray(f(np.asarray(x))), (self.score, self.merge)), held)

    def cut(self, keep: np.ndarray) -> "Table":
        """What stays, closed up."""
        order = np.argsort(~keep, axis=-1, kind="stable")
        return self._changed(lambda x: np.take_along_axis(x, order.reshape(order.shape + (1,) * (x.ndim - 3)), 2), keep[0].sum(-1))

    def grown(self, k: np.ndarray, v: np.ndarray, at: int) -> "Table":
        """One token behind what each head holds; its bias and its states are 0."""
        behind = 0, np.arange(len(self.held)), self.held

        def blank(x):
            x = x.copy()
            x[behind] = 0
            return x

        new = self._changed(blank, self.held + 1)
        new.k[behind], new.v[behind], new.pos[behind] = k, v, at
        return new


class Slow:
    """A policy on one prompt: `after_prompt`, then `tokens`."""

    def __init__(self, lm, pre, policy):
        self.lm, self.pre, self.policy, self.row = lm, pre, policy, pre.rows[0]
        self.layers, self.length = range(lm.decoder.layers), int(pre.rows[0].length[0])
        self.steps = 0

    def kept(self) -> list[list[np.ndarray]]:
        return [[t.pos[0, h, : t.held[h]] for h in range(len(t.held))] for t in self.tables]

    def view(self, table: Table, state: Any, since: int | None = None) -> LayerView:
        bias = jnp.asarray(table.bias) if self.policy.merge.biased else None
        pos = jnp.where(table.valid, table.pos, 0).astype(jnp.int32)
        ids = self.row.ids[None] if since is None else None
        return LayerView(
            k=jnp.asarray(table.k), v=jnp.asarray(table.v), pos=pos, valid=jnp.asarray(table.valid),
            length=jnp.array([self.length + self.steps], jnp.int32), state=state, bias=bias, ids=ids,
            since=None if since is None else jnp.array([since], jnp.int32), prompt=jnp.array([self.length], jnp.int32),
        )  # fmt: skip

    # ---- The prompt

    def after_prompt(self) -> None:
        policy, row = self.policy, self.row
        shape = row.k[0].shape[:3]
        held = np.full(shape[1], self.length)
        pos = np.broadcast_to(np.arange(shape[2], dtype=np.int32), shape)
        blank = Table(row.k[0], row.v[0], pos, np.zeros(shape, np.float32), (), (), held)
        views, rated = [], []
        for layer in self.layers:
            table = Table(row.k[layer], row.v[layer], pos, blank.bias, (), (), held)
            score, view = policy.score.at(layer), self.view(table, policy.score.init(shape))
            view = view.replace(bias=None)
            view = view.replace(state=_observe(score, view, row.evidence[layer]))
            rated.append(_rate(score, policy.allocate.at(layer), view, row.evidence[layer]))
            views.append(view)
        ranking, budget = self._planned(views, rated)
        self.budget = np.asarray(budget)
        keep = np.asarray(_choose(policy.select, ranking, budget)) if policy.when.after_prefill else np.asarray(ranking.valid)
        self._cut_prompt(views, ranking.scores, keep)

    def _planned(self, views, rated) -> tuple[Ranking, Any]:
        policy, view = self.policy, views[0]
        scores, second, measured = (jax.tree.map(lambda *x: jnp.stack(x), *x) for x in zip(*rated, strict=True))
        mean = policy.mean_budget(self.length)
        of_all = lambda x: jnp.broadcast_to(x, scores.shape)  # noqa: E731
        protect = lambda budget: policy.select.protected_by_layer(view.replace(k=None, v=None, state=(), ids=None), budget)  # noqa: E731
        ranking = Ranking(
            scores=scores, protected=protect(jnp.full(scores.shape[:3], mean, jnp.int32)), valid=of_all(view.valid),
            pos=of_all(view.pos), second=second, measured=measured, first=0, of=len(self.layers),
        )  # fmt: skip
        budget = jnp.maximum(_share(policy.allocate, ranking, jnp.array([mean], jnp.int32)), 1).astype(jnp.int32)
        return ranking.replace(protected=protect(budget)), budget

    def _cut_prompt(self, views, scores, keep) -> None:
        policy, row = self.policy, self.row
        self.tables, self.memory, self.evidence = [], [], []
        for layer in self.layers:
            view, evidence = views[layer], row.evidence[layer]
            merge, shape, decode_score = policy.merge.at(layer), view.pos.shape, policy.decode_score
            state = view.state
            if policy.when.decoding and policy.when.score is not None:
                other = decode_score.at(layer)
                state = _observe(other, view.replace(state=decode_score.init(shape)), evidence)
            bias = jnp.zeros(shape, jnp.float32)
            given = view.replace(state=merge.init(shape), bias=bias if merge.biased else None)
            given = given.replace(scored=state if merge.state_of else (), seen=evidence if merge.needs else None)
            new, memory = _merge(merge, given, jnp.asarray(keep[layer]), scores[layer], merge.begin(1))
            score = new.scored if merge.state_of else state
            rows = np.asarray(new.k), np.asarray(new.v), np.asarray(view.pos), np.asarray(new.bias if merge.biased else bias)
            self.tables.append(Table(*rows, score, new.state, view.held()[0]).cut(keep[layer]))
            self.memory.append(memory)
            if policy.when.decoding:
                carried = [need for need in decode_score.needs if need.carried]
                self.evidence.append(ev.restrict(evidence, self.pre.needs, carried))

    # ---- Decoded tokens

    def tokens(self, ids: list[int], capacity: np.ndarray) -> np.ndarray:
        """Logits [t, v] after each of them; `capacity` [l, 1, h] bounds budgets that are shared out anew."""
        self.capacity, logits = capacity, []
        for token in ids:
            self.blocks = []
            logits.append(run_steps(self.lm, [token], start=self.length + self.steps, attend=self._attend(token))[0])
            self.steps += 1
            if self.policy.when.decoding:
                self._evict()
        return np.stack(logits)

    def _attend(self, token):
        def attend(layer, inputs):
            at = self.length + self.steps
            self.tables[layer] = table = self.tables[layer].grown(np.asarray(inputs.k)[0, :, 0], np.asarray(inputs.v)[0, :, 0], at)
            q = np.asarray(inputs.q)[0, :, :, 0].astype(np.float64)
            z = np.einsum("hgd,hnd->hgn", q, table.k[0].astype(np.float64)) / np.sqrt(q.shape[-1]) + table.bias[0][:, None]
            p = softmax(np.where(table.valid[0][:, None], z, -np.inf))
            out = np.einsum("hgn,hnd->hgd", p, table.v[0].astype(np.float64))
            self.blocks.append(self._block(inputs, token, out, p, table))
            return out

        return attend

    def _block(self, inputs, token, out, p, table) -> Block:
        p, out = jnp.asarray(p[None, :, :, None], jnp.float32), jnp.asarray(out[None, :, :, None], jnp.float32)
        at, keys = jnp.array([self.length + self.steps], jnp.int32), jnp.asarray(np.where(table.valid, table.pos, -1))
        ids = jnp.array([[token]], jnp.int32)
        return Block(inputs, ids, out, at, jnp.array([1], jnp.int32), p, keys, self.steps + 1, jnp.array([self.length], jnp.int32))

    def _told(self, layer: int) -> ev.Evidence:
        """A layer's evidence after the token."""
        score, block = self.policy.decode_score.at(layer), self.blocks[layer]
        self.evidence[layer] = old = ev.observe(self.evidence[layer], [n for n in score.needs if n.carried], block)
        return old.replace(data=old.data | {n.key: n.now(block) for n in score.needs if not n.carried})

    def _evict(self) -> None:
        policy, when = self.policy, self.policy.when
        told, at = [self._told(layer) for layer in self.layers], self.length + self.steps - 1
        for layer, table in enumerate(self.tables):
            view = self.view(table, table.score, since=at)
            table.score = _observe(policy.decode_score.at(layer), view, told[layer])
        held = np.stack([t.held[None] for t in self.tables])
        one = jnp.array([1], jnp.int32)
        due = np.asarray(when.due(jnp.array([self.steps], jnp.int32), one, held=jnp.asarray(held), budget=jnp.asarray(self.budget)))
        if due.any():
            self._cut(told, due, at)

    def _cut(self, told, due, at) -> None:
        policy = self.policy
        views = [self.view(table, table.score, since=at) for table in self.tables]
        allocate = policy.allocate if policy.when.reallocate else Uniform()
        rated = [
            _rate(policy.decode_score.at(i), allocate.at(i), view, e) for i, (view, e) in enumerate(zip(views, told, strict=True))
        ]
        scores, second, measured = (jax.tree.map(lambda *x: jnp.stack(x), *x) for x in zip(*rated, strict=True))
        valid, pos = jnp.stack([v.valid for v in views]), jnp.stack([v.pos for v in views])
        protect = lambda budget: jnp.stack([policy.select.protected(v, b) for v, b in zip(views, budget, strict=True)])  # noqa: E731
        budget = jnp.asarray(self.budget)
        ranking = Ranking(
            scores=scores, protected=protect(budget), valid=valid, pos=pos, second=second, measured=measured, first=0,
            of=len(self.layers),
        )  # fmt: skip
        if policy.when.reallocate:
            budget = self._shared_anew(ranking, protect, due)
            ranking, self.budget = ranking.replace(protected=protect(budget)), np.asarray(budget)
        keep = np.where(due[..., None], np.asarray(_choose(policy.select, ranking, budget)), np.asarray(valid))
        for layer in self.layers:
            if due[layer].any():
                self._merged(layer, views[layer], keep[layer], scores[layer])
            self.tables[layer] = self.tables[layer].cut(keep[layer])

    def _shared_anew(self, ranking, protect, due):
        policy, budget = self.policy, jnp.asarray(self.budget)
        mean = budget.sum((0, 2)) // (budget.shape[0] * budget.shape[2])
        even = ranking.replace(protected=protect(jnp.broadcast_to(mean[:, None], budget.shape)))
        wish = jnp.maximum(_share(policy.allocate, even, mean), 1).astype(jnp.int32)
        until = policy.when.until_next(jnp.array([1], jnp.int32))
        most = jnp.minimum(ranking.valid.sum(-1), jnp.asarray(self.capacity) - until[:, None])
        return jnp.where(due, bounded(wish, budget.sum((0, 2)), most), budget)

    def _merged(self, layer, view, keep, scores) -> None:
        merge, table = self.policy.merge.at(layer), self.tables[layer]
        given = view.replace(state=table.merge, scored=table.score if merge.state_of else ())
        new, self.memory[layer] = _merge(merge, given, jnp.asarray(keep), scores, self.memory[layer])
        table.k, table.v, table.merge = np.asarray(new.k), np.asarray(new.v), new.state
        if merge.biased:
            table.bias = np.asarray(new.bias)
        if merge.state_of:
            table.score = new.scored
