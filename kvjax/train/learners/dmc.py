"""DMC: the model itself learns which tokens to average into the slot before them, by one neuron of its keys and queries.

*Dynamic Memory Compression: Retrofitting LLMs for Accelerated Inference*, arXiv 2403.09636, section 3.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float32, PyTree

from kvjax.artefacts.retrofit import own_weights, with_weights
from kvjax.protocols import Decoder
from kvjax.train.accumulated import NEVER, accumulating
from kvjax.train.batch import Batch
from kvjax.train.delayed import evicted_share, token_noise
from kvjax.train.frozen import Frozen
from kvjax.train.learner import Graded, Learner, Moment
from kvjax.train.losses import cross_entropy, masked_mean
from kvjax.train.rates import of_ratio, rate_hinge, ratio_ramp


@dataclass(frozen=True)
class DMC(Learner):
    """loss = CE of labelled tokens + weight · mean_rows max(0, 1 - 1/CR - share merged).

    Over the first share `fade` of the run, attention loses the two coordinates that decide, wholly by four fifths of it, and
    nothing merges. Then decisions are a = σ((k[d - 1] - offset + G1 - G2) / τ), G from the Gumbel distribution, and CR grows from 1
    to `ratio`; over the last share `hold` it stays there. The share counts a > 1/2 as 1, with the derivative of a.

    Args:
        ratio: CR at the end.   offset: of the neurons.   temperature: τ.   weight: of the second term.   fade, hold: see above.
        paths: parts of the paths of what is trained, such as attention.q (`own_weights`).
        rate: Adam's learning rate, constant.   clip: of the gradient's norm.

    What is made is the model's: `kvjax.artefacts.retrofitted(lm, artefact)` puts it in place.
    Source: DMC, arXiv 2403.09636, section 3, as released.
    Differs: a slot accumulates all of its tokens (the release: the last 12 at most), as it is served; embeddings, the last norm and
    the head stay as they are, unless `paths` names them.
    """

    method: ClassVar[str] = "dmc"
    ratio: float = 4.0
    offset: float = 5.0
    temperature: float = 0.1
    weight: float = 1.0
    fade: float = 0.2
    hold: float = 0.1
    paths: tuple[str, ...] = ("layers",)
    rate: float = 3e-5
    clip: float = 1.0

    @property
    def budget(self) -> float:
        """The share of the cache that stays."""
        return 1 / self.ratio

    def start(self, key: Array, frozen: Frozen) -> PyTree:
        del key
        return own_weights(frozen.params, self.paths)

    def loss(self, weights: PyTree, frozen: Frozen, batch: Batch, moment: Moment) -> Graded:
        student = frozen.replace(params=with_weights(frozen.params, weights))
        decide = partial(self.decide, moment)
        hook = accumulating(frozen.decoder.rope, decide, offset=self.offset, share=self.read_still(moment))
        x, logits = student.forward(batch.tokens, hook=hook)
        ce = masked_mean(student.by_blocks(cross_entropy, x, batch.next_tokens), batch.predicted)
        merged = evicted_share(jnp.stack(logits, axis=1), batch.valid)
        price = rate_hinge(merged, self.target(moment))
        return Graded(ce + self.weight * price, 1 - merged.mean(), {"ce": ce, "hinge": price})

    def decide(self, moment: Moment, layer: int, logit: Float32[Array, "b h t"]) -> Float32[Array, "b h t"]:
        """Noisy logits; those of tokens that all open slots while the neurons fade."""
        noisy = token_noise(jax.random.fold_in(moment.key, layer), logit, self.temperature)
        return jnp.where(moment.progress >= self.fade, noisy, NEVER)

    def read_still(self, moment: Moment) -> Float32[Array, ""]:
        """How much of the neurons' coordinates attention reads."""
        fading = 1 - moment.progress / (0.8 * self.fade) if self.fade else jnp.float32(0)
        return jnp.clip(fading, 0.0, 1.0)

    def target(self, moment: Moment) -> Float32[Array, ""]:
        """1 - 1/CR of the moment: the share that has to be merged."""
        return of_ratio(ratio_ramp((moment.progress - self.fade) / (1 - self.fade - self.hold), last=self.ratio))

    def optimiser(self, steps: int) -> optax.GradientTransformation:
        del steps
        return optax.chain(optax.clip_by_global_norm(self.clip), optax.adam(self.rate, b1=0.9, b2=0.95))

    def check(self, model: Decoder, length: int) -> None:
        del length
        if any(window is not None for window in model.windows):
            raise ValueError("accumulated slots need full attention: this model has layers with a sliding window")
        if self.ratio <= 1:
            raise ValueError(f"ratio is how many times smaller the cache becomes, above 1; got {self.ratio}")
        if min(self.fade, self.hold) < 0 or self.fade + self.hold >= 1:
            raise ValueError(f"fade and hold are shares of a run that leave some of it; got {self.fade} and {self.hold}")
