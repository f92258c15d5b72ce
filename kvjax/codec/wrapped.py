"""What codecs around another codec share."""

from flax import struct

from kvjax.codec.codec import Codec
from kvjax.protocols import Decoder
from kvjax.types import Layer


@struct.dataclass
class Wrapped(Codec):
    """What codecs around one other share.

    Args:
        codec: the other; not one that is fitted on each prompt.
    """

    codec: Codec

    def __post_init__(self):
        if isinstance(self.codec, Codec) and type(self.codec).fit is not Codec.fit:
            raise ValueError(f"{type(self).__name__} takes no codec that is fitted on each prompt; got {self.codec!r}")

    @property
    def page(self) -> int:
        return self.codec.page

    def at(self, layer: Layer) -> "Wrapped":
        return self.replace(codec=self.codec.at(layer))

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        self.codec.check(model, length, mean_budget)
