"""How many cells of a prompt are decoded as one batch."""

from typing import Any

from experiments.tasks.example import Example

#: A product of twice the rows takes less than twice the time, up to here; 32 have always fitted.
_FEWEST, _MOST = 32, 64
#: Bytes that all rows' caches may take, were nothing compressed, for more than the fewest.
_ROOM = 8 << 30


def full_nbytes(lm: Any, example: Example) -> int:
    """Bytes of a row's keys and values when everything is kept and all it has room for is there."""
    d, itemsize = lm.decoder, lm.params["embed"]["weight"].dtype.itemsize
    return 2 * d.layers * d.heads * d.head_dim * itemsize * (len(example.compressed) + example.room)


def rows_that_fit(lm: Any, example: Example) -> int:
    """64 where as many full caches stay within 8 GiB, fewer where they do not, 32 at least."""
    return max(_FEWEST, min(_MOST, _ROOM // full_nbytes(lm, example)))
