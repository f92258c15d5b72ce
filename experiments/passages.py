"""Which passages of two texts are the same, told from a small sketch of one of them.

A text is the set of its runs of twelve words, each hashed to 64 bits. A sketch holds the `MOST` smallest hashes: a uniform sample
of the runs that is drawn alike from every text, so that what two texts share is found without both of them.

Source: Broder (1997), On the resemblance and containment of documents: bottom-k sketches of shingles.
"""

import hashlib
from collections.abc import Iterator

import numpy as np
from jaxtyping import UInt64

#: Words in a row by which two texts are found to share something.
RUN = 12
#: Hashes of a sketch. Of a text of w words a shared stretch of s words is missed with probability (1 - MOST / w)^(s - RUN + 1).
MOST = 1024

Hashes = UInt64[np.ndarray, " n"]


def runs(text: str) -> Iterator[tuple[str, ...]]:
    """Every `RUN` words in a row; of a shorter text all its words."""
    words = text.split()
    yield from (tuple(words[i : i + RUN]) for i in range(max(1, len(words) - RUN + 1)))


def hashes(text: str) -> Hashes:
    """The distinct hashes of a text's runs, in ascending order; none of a text without words."""
    found = {hashlib.blake2b(" ".join(run).encode(), digest_size=8).digest() for run in runs(text) if run}
    return np.sort(np.frombuffer(b"".join(found), ">u8").astype(np.uint64))


def sketch(*texts: str) -> str:
    """The `MOST` smallest hashes of all texts together, as hexadecimal digits, sixteen each."""
    found = np.unique(np.concatenate([hashes(text) for text in texts]))[:MOST]
    return found.astype(">u8").tobytes().hex()


def shared(sketched: str, other: Hashes) -> int:
    """How many runs of a sketch stand in the other text, of which all hashes are given.

    Raises:
        ValueError: what is no sketch.
    """
    if len(sketched) % 16:
        raise ValueError(f"a sketch has sixteen hexadecimal digits a passage; got {len(sketched)} digits")
    mine = np.frombuffer(bytes.fromhex(sketched), ">u8").astype(np.uint64)
    return int(np.isin(mine, other).sum())
