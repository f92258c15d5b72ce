"""What "full cache" means wherever bytes are told: keys and values of all tokens, nothing else.

Positions, bookkeeping and the rounding of a pool to its size class are not in it: the policy `full` allocates a little more.
A MB is 10^6 bytes.
"""

from typing import Any

MB = 1e6


def full_nbytes(lm: Any, tokens: int) -> int:
    """Bytes of keys and values of `tokens` tokens in all layers and KV heads, in the model's dtype: 2 l h n d · bytes a number."""
    d, itemsize = lm.decoder, lm.params["embed"]["weight"].dtype.itemsize
    return 2 * d.layers * d.heads * d.head_dim * itemsize * tokens
