"""What codecs around another codec share."""

import math

from flax import struct

from kvjax.codec.codec import Codec
from kvjax.protocols import Decoder
from kvjax.types import Layer


@struct.dataclass
class Wrapped(Codec):
    """What codecs around others share.

    Args:
        codec: the other, or the first of them; none that is fitted on each prompt.
    """

    codec: Codec

    def __post_init__(self):
        for codec in self.inner:
            if isinstance(codec, Codec) and (type(codec).fit, type(codec).fit_to) != (Codec.fit, Codec.fit_to):
                raise ValueError(f"{type(self).__name__} takes no codec that is fitted on each prompt; got {codec!r}")

    @property
    def inner(self) -> tuple[Codec, ...]:
        """The codecs that this one is around."""
        return (self.codec,)

    @property
    def page(self) -> int:
        return math.lcm(*(codec.page for codec in self.inner))

    @property
    def across_heads(self) -> bool:
        return any(codec.across_heads for codec in self.inner)

    @property
    def together(self) -> bool:
        return any(codec.together for codec in self.inner)

    def at(self, layer: Layer) -> "Wrapped":
        return self.replace(codec=self.codec.at(layer))

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        for codec in self.inner:
            codec.check(model, length, mean_budget)
