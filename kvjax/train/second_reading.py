"""What a second reading of a text looks at: labels of gates that stand for it (KVzap)."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32

from kvjax.evidence import ProjectedValueSizes
from kvjax.prefill.repeat_context import RepeatedContext
from kvjax.prefill.run import prefill
from kvjax.prefill.second_pass import second_pass
from kvjax.protocols import LanguageModel

#: What a score is no smaller than before its logarithm.
LEAST = 1e-12
_SIZES = ProjectedValueSizes()


def log_scores(
    lm: LanguageModel, texts: Sequence[Sequence[int]], repeated: RepeatedContext
) -> list[Float32[np.ndarray, "l h n"]]:
    """ln max_t max_g A[t, j] ‖v_j W_o^(g)‖₂ / ‖x_t‖₂ of each text's tokens, the queries t those of the pass that repeats it.

    Args:
        texts: token ids.
        repeated: the pass; its need is `RelativeAttention()`. Tokens it does not tell of have ln 1e-12.

    Source: KVzap, arXiv 2601.07891, section 3, as released.
    """
    pre = second_pass(lm, prefill(lm, [list(ids) for ids in texts], needs={_SIZES}), {repeated})
    return [
        np.stack([_log_score(layer.of(repeated), layer.of(_SIZES))[:, :length] for layer in row.evidence])
        for row, length in zip(pre.rows, pre.lengths, strict=True)
    ]


def _log_score(attention: jnp.ndarray, sizes: jnp.ndarray) -> Float32[np.ndarray, "h n"]:
    return np.asarray(jnp.log(jnp.maximum((attention * sizes).max(2)[0], LEAST)))
