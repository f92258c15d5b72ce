"""A text in stretches, all before each mixed into a few slots by the merger that serves them, while it is learned (LoCoCo)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Float32, Int32, PyTree

from kvjax.attention_inputs import AttentionInputs
from kvjax.kernels.window_scores import sees
from kvjax.merge import Convolved
from kvjax.reach import in_reach, within_reach
from kvjax.select import TopK
from kvjax.train.attention import causal_weights, logits
from kvjax.train.forward import Attend
from kvjax.types import Keys, Scores, Values
from kvjax.view import LayerView, Ranking

#: What a view has of every slot.
_OF_SLOTS = ("k", "v", "pos", "valid", "state")


@dataclass(frozen=True)
class Convolving:
    """A hook: the first `read` tokens see each other in full, all later ones what those before them were cut to, and themselves.

    After the first part and then after each `every` tokens all that is held is cut, as `kvjax.methods.lococo(buffer=every - 1)`
    does: a prompt by the attention that its own queries pay, in all, what is held later by that of the last token. What a
    layer's sliding window has left behind goes first and is mixed into nothing (kvjax/reach.py).

    Args:
        read: tokens of the first part.   slots: M, of a head.   recent: last tokens that stay as they are in a cut.
        every: tokens between cuts.   windows: of each layer's attention.
    """

    read: int
    slots: int
    recent: int
    every: int
    windows: tuple[int | None, ...]

    def __call__(
        self, layer: int, weights: PyTree, inputs: AttentionInputs, attend: Attend
    ) -> tuple[Float[Array, "b h g t d"], tuple[()]]:
        window = self.windows[layer]
        part = AttentionInputs(q=inputs.q[..., : self.read, :], k=inputs.k[:, :, : self.read], v=inputs.v[:, :, : self.read])
        scores = lax.stop_gradient(causal_weights(part, window=window).sum(3).mean(2))
        view = LayerView.of_prompt(jnp.full(scores.shape[0], self.read, jnp.int32), scores.shape, k=part.k, v=part.v)
        held = self.cut(weights, view.replace(state=jnp.zeros(scores.shape, jnp.int32)), scores, window)

        def stretch(held, new):
            q, k, v = new
            view = with_new(held, k, v)
            a = step_weights(q, view, window)
            out = jnp.einsum("bhgtn,bhnd->bhgtd", a, view.v.astype(jnp.float32), precision="highest")
            return self.cut(weights, view, lax.stop_gradient(a[..., -1, :].mean(2)), window), out.astype(q.dtype)

        _, later = lax.scan(stretch, held, tuple(self.stretches(x) for x in (inputs.q, inputs.k, inputs.v)))
        later = jnp.moveaxis(later, 0, 3).reshape(*inputs.q.shape[:3], -1, inputs.q.shape[-1])
        return jnp.concatenate([attend(part), later], 3)[..., : inputs.q.shape[3], :], ()

    def stretches(self, x: Array) -> Array:
        """What is behind the first part, [s, b, ..., every, d]; the last stretch ends with zeros, which nothing sees."""
        x = x[..., self.read :, :]
        x = jnp.pad(x, (*((0, 0),) * (x.ndim - 2), (0, -x.shape[-2] % self.every), (0, 0)))
        return jnp.moveaxis(x.reshape(*x.shape[:-2], -1, self.every, x.shape[-1]), -3, 0)

    def cut(self, weights: PyTree, view: LayerView, scores: Scores, window: int | None) -> LayerView:
        """What is left of the slots, by ascending position."""
        windows = windows_of(view, window)
        scores = within_reach(scores, view.pos, view.length, windows)
        slots, select = min(self.slots, self.read), TopK(recent=self.recent)
        budget = jnp.full(scores.shape[:2], slots, jnp.int32)
        ranking = Ranking(
            scores=scores[None], protected=select.protected(view, budget)[None], valid=view.valid[None], pos=view.pos[None]
        )
        keep = select(ranking, budget[None])[0]
        view = view.replace(valid=view.valid & (keep | in_reach(view.pos, view.length, windows)))
        merged, _ = Convolved(weights=weights, recent=self.recent, origin="training")(view, keep, scores, ())
        at = jnp.argsort(~keep, axis=-1, stable=True)[..., :slots]
        return merged.replace(**{name: _taken(getattr(merged, name), at) for name in _OF_SLOTS})


def with_new(held: LayerView, k: Keys, v: Values) -> LayerView:
    """What is held, and a stretch's tokens behind it."""
    b, h, t = k.shape[:3]
    pos = jnp.broadcast_to((held.length[:, None] + jnp.arange(t, dtype=jnp.int32))[:, None], (b, h, t))
    rows = {"k": k, "v": v, "pos": pos, "valid": jnp.ones(pos.shape, bool), "state": jnp.zeros_like(pos)}
    both = {name: jnp.concatenate([getattr(held, name), rows[name]], 2) for name in _OF_SLOTS}
    return held.replace(**both, length=held.length + t)


def step_weights(q: Float[Array, "b h g t d"], view: LayerView, window: int | None) -> Float32[Array, "b h g t n"]:
    """The attention of the last t tokens of a view over its slots."""
    at = view.length[:, None] - jnp.arange(q.shape[3], 0, -1, dtype=jnp.int32)
    seen = sees(view.pos, view.valid, at, windows_of(view, window))
    return jax.nn.softmax(jnp.where(seen, logits(q, view.k), -jnp.inf), axis=-1)


def windows_of(view: LayerView, window: int | None) -> Int32[Array, " b"] | None:
    """A layer's window, of each text of the batch."""
    return None if window is None else jnp.full_like(view.length, window)


def _taken(x: Array, at: Array) -> Array:
    return jnp.take_along_axis(x, at.reshape(*at.shape, *(1,) * (x.ndim - 3)), 2)
