"""When a slot is coded: schedules of the exact tail that coded keys or values keep."""

from flax import struct
from jaxtyping import Array, Int32


class Window:
    """How many of n slots are coded once a step, or the prompt, is over; the others are exact.

    Attributes:
        rows: exact slots there must be room for, the step's new one included.
        block: slots that are coded at once while decoding.
    """

    rows: int
    block: int

    def coded(self, n: Int32[Array, "*a"]) -> Int32[Array, "*a"]:
        """Slots that are coded, the first of n."""
        raise NotImplementedError(f"{type(self).__name__} must define coded(n)")


@struct.dataclass
class BlockFlush(Window):
    """The tail grows to `size` slots, all are coded after the step that fills it, and it is empty: n mod size are exact.

    Args:
        size: R, slots of a block; a multiple of the codec's page.
    Source: KIVI, arXiv 2402.02750, algorithm 1, keys.
    """

    size: int = struct.field(pytree_node=False, default=128)

    def __post_init__(self):
        if self.size < 1:
            raise ValueError(f"a block is at least 1 slot; got {self!r}")

    @property
    def rows(self) -> int:
        return self.size

    @property
    def block(self) -> int:
        return self.size

    def coded(self, n: Int32[Array, "*a"]) -> Int32[Array, "*a"]:
        return n - n % self.size


@struct.dataclass
class Slide(Window):
    """Always the newest `size` slots are exact: each new one pushes one out, after the step has looked at both.

    Args:
        size: R, slots of the tail; 0: a slot is exact in its own step alone.
    Source: KIVI, arXiv 2402.02750, algorithm 1, values.
    """

    size: int = struct.field(pytree_node=False, default=128)

    def __post_init__(self):
        if self.size < 0:
            raise ValueError(f"a tail is 0 slots or more; got {self!r}")

    @property
    def rows(self) -> int:
        return self.size + 1

    @property
    def block(self) -> int:
        return 1

    def coded(self, n: Int32[Array, "*a"]) -> Int32[Array, "*a"]:
        return (n - self.size).clip(0)


@struct.dataclass
class Windows:
    """One schedule for coded keys, another for coded values; None codes a slot as it comes."""

    keys: Window | None = None
    values: Window | None = None
