"""LoCoCo: a convolution along the tokens that mixes what a cache of fixed size has no slots for.

*LoCoCo: Dropping In Convolutions for Long Context Compression*, arXiv 2406.05317, section 3.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

from kvjax.merge import init_convolution
from kvjax.protocols import Decoder, LanguageModel
from kvjax.train.batch import Batch
from kvjax.train.convolving import Convolving
from kvjax.train.frozen import Frozen
from kvjax.train.learner import Graded, Learner, Moment
from kvjax.train.losses import cross_entropy, masked_mean


@dataclass(frozen=True)
class LoCoCo(Learner):
    """loss = CE of the labelled ones of a text's last `chunk` tokens, which see what is before them cut to `budget` slots.

    They are read as they are decoded: all that is held is cut again after each `every` of them.

    Args:
        budget: M, slots of a head.   share: of them that stay as they are, heavy hitters; the others are mixtures.
        width: of the convolution, odd.   recent: last tokens before a cut that are heavy.   chunk: tokens that are predicted.
        every: tokens of the chunk between cuts, `buffer` + 1 of the policy that will be served.
        rate: Adam's, falling straight to 0; `conv_factor` and `gamma_factor` times that for the convolution and for γ.

    Source: LoCoCo, arXiv 2406.05317, section 3, as released.
    Differs: the first cut is of all before the chunk, further ones are those of decoding, each by the last token's attention (the
    release cuts before every chunk of 512, up to 16, by all attention of the last chunk); gradients go through all cuts (there
    through the current one alone); γ is put back into 0..1 after a step, where what is mixed again and again stays a mean (there it
    is free, and |1 - γ| + γ > 1 grows with every cut); the model is frozen (the release trains its embeddings and norms at 5 times
    the rate, and can train low-rank updates of it, too).
    """

    method: ClassVar[str] = "lococo"
    budget: int = 512
    share: float = 0.5
    width: int = 21
    recent: int = 0
    chunk: int = 512
    every: int = 17
    rate: float = 5e-5
    conv_factor: float = 1000.0
    gamma_factor: float = 1000.0

    def init(self, key: Array, model: Decoder) -> PyTree:
        slots = int(self.budget * (1 - self.share))
        return init_convolution(key, layers=model.layers, slots=slots, head_dim=model.head_dim, width=self.width)

    def measure(self, lm: LanguageModel, batch: Batch) -> Batch:
        """The batch as it is. Raises ValueError for a text that ends before its last tokens begin."""
        del lm
        shortest, read = int(np.asarray(batch.valid).sum(-1).min()), batch.tokens.shape[-1] - self.chunk
        if shortest < read + 2:
            raise ValueError(f"a text of {shortest} tokens has nothing to predict behind the first {read}: leave it out")
        return batch

    def loss(self, weights: PyTree, frozen: Frozen, batch: Batch, moment: Moment) -> Graded:
        del moment
        read = batch.tokens.shape[-1] - self.chunk
        hook = Convolving(read, self.budget, self.recent, self.every, frozen.decoder.windows)
        x, _ = frozen.forward(batch.tokens, hook=hook, gates=weights)
        told = batch.predicted & (jnp.arange(batch.tokens.shape[-1]) >= read)
        ce = masked_mean(frozen.by_blocks(cross_entropy, x, batch.next_tokens), told)
        return Graded(ce, jnp.float32(min(1.0, self.budget / read)), {"ce": ce, "gamma": weights["gamma"].mean()})

    def optimiser(self, steps: int) -> optax.GradientTransformation:
        factors = {"conv": self.conv_factor, "gamma": self.gamma_factor}
        rates = {name: optax.adam(optax.linear_schedule(factor * self.rate, 0.0, steps)) for name, factor in factors.items()}
        return optax.multi_transform(rates, {"kernel": "conv", "bias": "conv", "gamma": "gamma"})

    def project(self, weights: PyTree) -> PyTree:
        return {**weights, "gamma": jnp.clip(weights["gamma"], 0.0, 1.0)}

    def check(self, model: Decoder, length: int) -> None:
        del model
        if length - self.chunk <= self.budget:
            raise ValueError(
                f"of texts of {length} tokens the last {self.chunk} are predicted, and {self.budget} slots hold all before them: "
                "lengthen them, or give a smaller chunk or budget"
            )
        if not 0 <= self.share < 1 or self.width % 2 == 0 or self.every < 1:
            how = f"{self.share}, {self.width} and {self.every}"
            raise ValueError(f"share leaves some slots to mixtures, width is odd and every at least 1; got {how}")
