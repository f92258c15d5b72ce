"""Which frequencies of a head agree with all of them about the tokens to look at (FASA)."""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Float32, Int, Int32, PyTree

from kvjax.evidence import WindowQueries
from kvjax.prefill.run import prefill
from kvjax.protocols import LanguageModel
from kvjax.retrieve.dominant import HalfSplit, Interleaved
from kvjax.retrieve.token_lists import best


@partial(jax.jit, static_argnames="pairs")
def agreement(
    q: Float[Array, "h g w d"], k: Float[Array, "h n d"], length: Int32[Array, ""], tokens: int, *,
    pairs: tuple[tuple[int, ...], ...],
) -> Float32[Array, "h g p"]:  # fmt: skip
    """CA_i = |topK(q·k) ∩ topK(q_i·k_i)| / K, the mean over queries; q_i the channels of pair i alone.

    The queries are the last of the text: query i of w sees the first length - w + 1 + i of the keys.
    """
    q, k, w = q.astype(jnp.float32), k.astype(jnp.float32), q.shape[2]
    sees = jnp.arange(k.shape[1]) < (length - w + 1 + jnp.arange(w))[:, None]
    many = jnp.full(q.shape[:3], tokens, jnp.int32)
    chosen = partial(best, valid=jnp.broadcast_to(sees, (*q.shape[:3], k.shape[1])), k=many)
    of = partial(jnp.einsum, "hgwd,hnd->hgwn", precision="highest")
    full = chosen(of(q, k))

    def of_pair(pair: Int[Array, " 2"]) -> Float32[Array, "h g"]:
        both = full & chosen(of(q[..., pair], k[..., pair]))
        return (both.sum(-1) / jnp.maximum(full.sum(-1), 1)).mean(-1)

    return jnp.moveaxis(lax.map(of_pair, jnp.array(pairs, jnp.int32)), 0, -1)


def dominant_pairs(
    lm: LanguageModel, prompts: Sequence[PyTree], count: int = 16, *, tokens: int = 256, queries: int = 16,
    layout: HalfSplit | Interleaved = HalfSplit(),
    by_kv_head: bool = False,
) -> Int32[np.ndarray, "l h count"]:  # fmt: skip
    """The `count` frequency pairs of largest contextual agreement of every query head, ascending: the table of FASA's artefact.

    Args:
        lm: the language model.   prompts: texts as token ids; the release takes eight long ones.
        tokens: K, of both rankings.   queries: last queries of each text that are averaged over.
        layout: HalfSplit() or Interleaved(), which channels are a pair.
        by_kv_head: one list for the query heads of a KV head, by their mean agreement: what a device keeps is then least.

    Source: FASA, arXiv 2602.03152. Differs: the agreement is averaged over the last queries of each text, in the release over those
    of the answers that it generates; K is one number, the release ranks by six from 128 to 4,096 and serves the ranking of its
    budget (of 1,024 where the budget is none of them).
    """
    pre, scores = prefill(lm, prompts, needs={WindowQueries(queries)}), []
    pairs = tuple(map(tuple, layout.channels(lm.decoder.head_dim).tolist()))
    for layer in range(lm.decoder.layers):
        rows = [(r.evidence[layer].window_queries(queries)[0], r.k[layer][0], r.length[0], tokens) for r in pre.rows]
        mean = np.mean([agreement(*row, pairs=pairs) for row in rows], 0)
        scores.append(mean.mean(1) if by_kv_head else mean.reshape(-1, len(pairs)))
    order = np.argsort(-np.stack(scores), axis=-1, kind="stable")[..., :count]
    return np.sort(order, -1).astype(np.int32)
