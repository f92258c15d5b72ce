"""The backbone while gates are trained: a decoder and parameters that no gradient reaches."""

from collections.abc import Callable

from flax import struct
from jaxtyping import Array, Float, Float32, Int32, PyTree

from kvjax.protocols import Decoder, LanguageModel
from kvjax.train.forward import Hook, by_blocks, forward, plain


@struct.dataclass
class Frozen:
    """A language model's decoder and parameters, and the three passes that losses are made of.

    Attributes:
        params: of the model.   decoder: its pure functions.
    """

    params: PyTree
    decoder: Decoder = struct.field(pytree_node=False)

    @classmethod
    def of(cls, lm: LanguageModel) -> "Frozen":
        return cls(params=lm.params, decoder=lm.decoder)

    def forward(
        self,
        tokens: Int32[Array, "b t"],
        *,
        hook: Hook = plain,
        gates: PyTree = (),
        embedded: Float[Array, "b t e"] | None = None,
    ) -> tuple[Float[Array, "b t e"], list[PyTree]]:
        """(residual stream after the last layer, what the hook gave back of each layer); see `kvjax.train.forward`."""
        return forward(self.decoder, self.params, tokens, hook=hook, gates=gates, embedded=embedded)

    def norm(self, x: Float[Array, "b t e"]) -> Float[Array, "b t e"]:
        """The final hidden state: the residual stream after the model's last norm."""
        return self.decoder.norm(self.params, x)

    def unembed(self, x: Float[Array, "b t e"]) -> Float32[Array, "b t v"]:
        """Logits of a few tokens; those of a whole text come `by_blocks`."""
        return self.decoder.unembed(self.params, x)

    def by_blocks(self, f: Callable[..., PyTree], x: Float[Array, "b t e"], *targets: Array, block: int = 512) -> PyTree:
        """f(logits, *targets) of `block` tokens at a time; see `kvjax.train.by_blocks`."""
        return by_blocks(f, self.decoder, self.params, x, *targets, block=block)
