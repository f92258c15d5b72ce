"""What decoding gave: tokens, text, the cache to go on with."""

import numpy as np
from flax import struct
from jaxtyping import Array, Int32, PyTree

from kvjax.cache.kv_cache import KVCache
from kvjax.cache.sharded import ShardedCache
from kvjax.protocols import Tokenizer
from kvjax.short_repr import attempt, counted, one_line


@struct.dataclass
class Decoded:
    """What decoding gave.

    Attributes:
        tokens: int32 [B, new]; a row that stopped earlier is filled with its last stop token.
        lengths: int32 [B], tokens of each row, the stop token included.
        logits: float32 [B, new, V] that each token was chosen from, if asked for.
        cache: the cache with every emitted token in it, ready to go on.
        info: {"seconds" of the loop without its compilation, "steps", "ms_per_token" of all rows together, "nbytes", "slots"}.
        tokenizer: the model's.   stop: token ids that ended a row.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    logits: PyTree
    cache: KVCache | ShardedCache
    info: dict
    tokenizer: Tokenizer | None = struct.field(pytree_node=False, default=None)
    stop: tuple[int, ...] = struct.field(pytree_node=False, default=())

    @property
    def text(self) -> list[str]:
        """The text of each row, without stop tokens: those that ended rows, and the model's own.

        Raises:
            ValueError: the model has no tokenizer.
        """
        if self.tokenizer is None:
            raise ValueError("the model has no tokenizer: read .tokens, or models.load(..., tokenizer=FOLDER)")
        silent = {*self.stop, *self.tokenizer.stop_ids}
        rows = zip(np.asarray(self.tokens).tolist(), np.asarray(self.lengths).tolist(), strict=True)
        return [self.tokenizer.decode([token for token in row[:n] if token not in silent]) for row, n in rows]

    def __repr__(self) -> str:
        """Its sizes in one line, and how its first row begins."""
        return one_line(
            "Decoded",
            attempt(lambda: counted(len(self.tokens), "row")),
            attempt(lambda: counted(self.tokens.shape[1], "token")),
            attempt(lambda: f"{self.info['ms_per_token']:.1f} ms a token"),
            attempt(lambda: repr(_beginning(self.text[0]))),
        )


def told(seconds: float, steps: int, cache: KVCache | ShardedCache) -> dict[str, float | int]:
    """`Decoded.info` of a loop that took so long."""
    return dict(seconds=seconds, steps=steps, ms_per_token=1e3 * seconds / steps, nbytes=cache.nbytes, slots=cache.slots)


def stop_ids(stop: Int32[Array, " s"]) -> tuple[int, ...]:
    """The token ids that end a row, of an array that is filled up with -1."""
    return tuple(token for token in np.asarray(stop).tolist() if token >= 0)


def _beginning(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}..."
