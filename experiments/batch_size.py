"""How many cells of a prompt are decoded as one batch."""

from typing import Any

from experiments.full_cache import full_nbytes
from experiments.tasks.example import Example

#: A product of twice the rows takes less than twice the time, up to here; 32 have always fitted.
_FEWEST, _MOST = 32, 64
#: Bytes that all rows' caches may take, were nothing compressed, for more than the fewest.
_ROOM = 8 << 30


def row_nbytes(lm: Any, example: Example) -> int:
    """Bytes of a row's full cache once all it has room for is there."""
    return full_nbytes(lm, len(example.compressed) + example.room)


def rows_that_fit(lm: Any, example: Example) -> int:
    """64 where as many full caches stay within 8 GiB, fewer where they do not, 32 at least."""
    return max(_FEWEST, min(_MOST, _ROOM // row_nbytes(lm, example)))
