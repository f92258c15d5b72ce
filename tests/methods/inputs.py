"""What the toy model's layers hand to attention over a prompt, as NumPy arrays for the references."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from tests.reference.attention import attention_rows


@dataclass(frozen=True)
class Layer:
    """One layer: queries [h, g, n, d], keys and values [h, n, d], rotated and raw; W_o as [h, g, d, e]."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    q_raw: np.ndarray
    k_raw: np.ndarray
    w_o: np.ndarray

    def rows(self) -> np.ndarray:
        """Causal attention [h, g, n, n]."""
        return attention_rows(self.q, self.k)


def layers_of(lm, ids: list[int]) -> list[Layer]:
    """The layers of a prompt under causal attention, in float32 but for the softmax."""
    taken, at = [], jnp.arange(len(ids), dtype=jnp.int32)[None]
    x = lm.decoder.embed(lm.params, jnp.asarray([ids], jnp.int32))

    def attend(heads):
        q, k, v, q_raw, k_raw = (np.asarray(a[0]) for a in (heads.q, heads.k, heads.v, heads.q_raw, heads.k_raw))
        taken.append(Layer(q, k, v, q_raw, k_raw, np.asarray(heads.w_o).transpose(1, 2, 3, 0)))
        out = np.einsum("hgtn,hnd->hgtd", taken[-1].rows(), v)
        return jnp.asarray(out[None], heads.q.dtype), None

    for weights in lm.params["layers"]:
        x, _ = lm.decoder.layer(weights, x, at, attend)
    return taken
