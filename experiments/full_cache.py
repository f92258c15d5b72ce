"""What "full cache" means wherever bytes are told: keys and values of all tokens, nothing else.

Positions, bookkeeping and the rounding of a pool to its size class are not in it: the policy `full` allocates a little more.
A MB is 10^6 bytes.
"""

from collections.abc import Mapping
from typing import Any

MB = 1e6
#: Bytes of a number, by the dtypes that models are loaded in.
SIZES = {"float32": 4, "bfloat16": 2, "float16": 2}
#: What a column is called whose numbers are shares of `half_nbytes`.
OF_HALF = "of 16-bit cache"


def full_nbytes(lm: Any, tokens: int) -> int:
    """Bytes of keys and values of `tokens` tokens in all layers and KV heads, in the model's dtype: 2 l h n d · bytes a number."""
    d, itemsize = lm.decoder, lm.params["embed"]["weight"].dtype.itemsize
    return 2 * d.layers * d.heads * d.head_dim * itemsize * tokens


def half_nbytes(row: Mapping[str, Any]) -> float:
    """Bytes of a row's full cache in 16 bits, whatever it was measured in: full_bytes · 2 / bytes of a number of its dtype."""
    return row["full_bytes"] * 2 / SIZES[row["dtype"]]
