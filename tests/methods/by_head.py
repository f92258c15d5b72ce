"""One sequence through the toy model's own layers, its attention by a transcription in every KV head."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np


class ByHead:
    """An exact prefill, then one token at a time; `make(layer)` is the cache of one KV head, as `tests.reference.kivi.Kivi`; `fill`
    gives it the prompt."""

    def __init__(self, lm: Any, pre: Any, make: Callable[[int], Any], fill: bool = True):
        self.lm, self.position = lm, pre.lengths[0]
        self.heads = [[make(layer) for _ in range(2)] for layer in range(3)]
        for layer, heads in enumerate(self.heads):
            for h, head in enumerate(heads) if fill else ():
                k, v = (np.asarray(x[layer])[0, h, : self.position] for x in (pre.rows[0].k, pre.rows[0].v))
                head.extend(np.zeros((2, *k.shape)), k, v)

    def step(self, token: int) -> np.ndarray:
        """The logits after a token."""
        x = self.lm.decoder.embed(self.lm.params, jnp.asarray([[token]], jnp.int32))
        at = jnp.asarray([[self.position]], jnp.int32)
        for layer, weights in enumerate(self.lm.params["layers"]):

            def attend(inputs, layer=layer):
                q, k, v = (np.asarray(y)[0] for y in (inputs.q, inputs.k, inputs.v))
                out = [head.step(q[h, :, 0], k[h, 0], v[h, 0])[0] for h, head in enumerate(self.heads[layer])]
                return jnp.asarray(np.stack(out)[None, :, :, None], inputs.q.dtype), None

            x, _ = self.lm.decoder.layer(weights, x, at, attend)
        self.position += 1
        return np.asarray(self.lm.decoder.unembed(self.lm.params, x))[0, 0]
