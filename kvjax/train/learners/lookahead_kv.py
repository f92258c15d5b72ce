"""LookaheadKV: learned tokens behind a prompt that look where the model's own answer will look.

*LookaheadKV: Fast and Accurate KV Cache Eviction by Glimpsing into the Future without Generation*, arXiv 2603.10899, section 3.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from kvjax.gates.soft_tokens import SoftTokens, init_soft_tokens
from kvjax.protocols import Decoder, LanguageModel
from kvjax.train.answer_attention import check_answers
from kvjax.train.batch import Batch
from kvjax.train.frozen import Frozen
from kvjax.train.learner import Graded, Learner, Moment
from kvjax.train.ranks import rank_correlation
from kvjax.train.regression import score_kl
from kvjax.train.schedules import cosine
from kvjax.train.soft_rows import labelling, soft_rows


@dataclass(frozen=True)
class LookaheadKV(Learner):
    """loss = mean over layers and query heads of KL(s / Σ s ‖ u / Σ u), over the tokens j before the first labelled one.

    s_j is the mean attention that the labelled tokens, the answer, pay token j; u_j that of the learned tokens. The terms also tell
    Spearman's ρ of u and s, means over the query heads of a KV head, which is what ranks where they are served.

    Args:
        budget: slots of a head that `kept` tells of; the loss knows none.
        tokens: learned tokens.   rank, alpha: of the low-rank updates that they are read through, scaled by alpha / rank.
        rate: AdamW's learning rate, up over `warmup` steps and along a cosine to 0; weights decay by 1e-4 of it.
        clip: of the gradient's norm.

    Source: LookaheadKV, arXiv 2603.10899, section 3.
    Differs: the paper's optimiser is not told; the warm-up takes at most a tenth of the run. The last layer's updates of what comes
    after its attention have no gradient, and stay as they are.
    """

    method: ClassVar[str] = "lookahead_kv"
    budget: int = 256
    tokens: int = 32
    rank: int = 8
    alpha: float = 32.0
    rate: float = 1e-4
    warmup: int = 100
    clip: float = 1.0

    def start(self, key: Array, frozen: Frozen) -> PyTree:
        return init_soft_tokens(frozen, key, tokens=self.tokens, rank=self.rank)

    def measure(self, lm: LanguageModel, batch: Batch) -> Batch:
        """The batch as it is. Raises ValueError for a text without an answer behind a prompt, or too long for the tokens."""
        check_answers(self.method, batch.label, batch.prompt)
        if batch.tokens.shape[-1] + self.tokens > lm.decoder.max_positions:
            raise ValueError(
                f"texts of {batch.tokens.shape[-1]} tokens leave the {self.tokens} learned ones no room in a context of "
                f"{lm.decoder.max_positions}: shorten them"
            )
        return batch

    def loss(self, weights: PyTree, frozen: Frozen, batch: Batch, moment: Moment) -> Graded:
        del moment
        prompt = batch.prompt
        _, read = frozen.forward(batch.tokens, hook=labelling(batch.label, frozen.decoder.windows))
        paid = soft_rows(frozen, SoftTokens.of(weights, self.alpha), read, prompt.sum(-1, dtype=jnp.int32))
        told = prompt[:, None, None, None]
        wanted, score = (jnp.where(told, x, 0.0) for x in (jnp.stack([label for *_, label in read], axis=1), paid))
        kl = score_kl(wanted, score).mean()
        heads = jnp.broadcast_to(told[:, :, 0], wanted.shape[:3] + wanted.shape[4:])
        rank = rank_correlation(score.mean(3), wanted.mean(3), heads).mean()
        kept = jnp.minimum(1.0, self.budget / prompt.sum(-1)).mean()
        return Graded(kl, kept, {"kl": kl, "rank_correlation": rank})

    def optimiser(self, steps: int) -> optax.GradientTransformation:
        schedule = cosine(self.rate, steps, warmup=self.warmup, floor=0.0)
        return optax.chain(optax.clip_by_global_norm(self.clip), optax.adamw(schedule))

    def check(self, model: Decoder, length: int) -> None:
        del length
        if min(self.tokens, self.rank) < 1:
            raise ValueError(f"learned tokens and the rank of their updates are at least 1; got {self.tokens} and {self.rank}")
