"""A text's first part mixed into a few slots by the merger that serves it, the rest reading these, while it is learned (LoCoCo)."""

from dataclasses import dataclass

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PyTree

from kvjax.attention_inputs import AttentionInputs
from kvjax.merge import Convolved
from kvjax.select import TopK
from kvjax.train.attention import causal_weights
from kvjax.train.forward import Attend
from kvjax.types import Mask
from kvjax.view import LayerView, Ranking


@dataclass(frozen=True)
class Convolving:
    """A hook: the first `read` tokens see each other in full, all others what these have been cut to, and themselves.

    The cut is that of `kvjax.methods.lococo` after a prompt: by the attention that the prompt's own queries pay, in all.

    Args:
        read: tokens of the first part.   slots: M, of a head.   recent: last tokens of the part that stay as they are.
        window: of each layer's attention.
    """

    read: int
    slots: int
    recent: int
    windows: tuple[int | None, ...]

    def __call__(
        self, layer: int, weights: PyTree, inputs: AttentionInputs, attend: Attend
    ) -> tuple[Float[Array, "b h g t d"], tuple[()]]:
        view, keep = self.merged(weights, inputs, self.windows[layer])
        i = jnp.arange(inputs.q.shape[3])
        hidden = jnp.pad(~keep, ((0, 0), (0, 0), (0, len(i) - self.read)))[:, :, None, None] & (i >= self.read)[:, None]

        def behind(own, merged):
            return jnp.concatenate([merged, own[:, :, self.read :]], 2)

        cut = inputs.replace(k=behind(inputs.k, view.k), v=behind(inputs.v, view.v))
        out = attend(cut, jnp.where(hidden, -jnp.inf, 0.0))
        return jnp.where((i < self.read)[:, None], attend(inputs), out), ()

    def merged(self, weights: PyTree, inputs: AttentionInputs, window: int | None) -> tuple[LayerView, Mask]:
        """The first part after the cut, and which of its slots stay."""

        def first(x, axis):
            return lax.slice_in_dim(x, 0, self.read, axis=axis)

        part = AttentionInputs(q=first(inputs.q, 3), k=first(inputs.k, 2), v=first(inputs.v, 2))
        scores = lax.stop_gradient(causal_weights(part, window=window).sum(3).mean(2))
        rows, shape = scores.shape[0], scores.shape
        view = LayerView.of_prompt(jnp.full(rows, self.read, jnp.int32), shape, k=part.k, v=part.v)
        view, select = view.replace(state=jnp.zeros(shape, jnp.int32)), TopK(recent=self.recent)
        budget = jnp.full(shape[:2], self.slots, jnp.int32)
        ranking = Ranking(
            scores=scores[None], protected=select.protected(view, budget)[None], valid=view.valid[None], pos=view.pos[None]
        )
        keep = select(ranking, budget[None])[0]
        view, _ = Convolved(weights=weights, recent=self.recent, origin="training")(view, keep, scores, ())
        return view, keep
