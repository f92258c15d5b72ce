"""Which numbers a field of a stage may hold, said where the field is declared; `kvjax.stage_fields` checks it."""

import math
from dataclasses import dataclass
from typing import Annotated

from kvjax.types import Number


@dataclass(frozen=True)
class Range:
    """Numbers from `least` to `most`, both included.

    Attributes:
        whole: whether fractions are none of them.
    """

    least: int | float
    most: int | float = math.inf
    whole: bool = False

    def holds(self, x: int | float) -> bool:
        """Whether x is one of them; NaN never is."""
        return self.least <= x <= self.most and not (self.whole and not float(x).is_integer())

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        return f"{kind} of at least {self.least:g}" if self.most == math.inf else f"{kind} from {self.least:g} to {self.most:g}"


#: Leaves: tokens or slots, a part of something, a weight or a rate.
Count = Annotated[Number, Range(0, whole=True)]
Share = Annotated[Number, Range(0, 1)]
NonNegative = Annotated[Number, Range(0)]
#: Static: tokens of a window or a block, of which there is one at least; tokens or layers, of which there may be none.
Size = Annotated[int, Range(1, whole=True)]
Whole = Annotated[int, Range(0, whole=True)]
StaticShare = Annotated[float, Range(0, 1)]
