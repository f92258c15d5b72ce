"""Bytes of one conversation on disk under several storages, as it is and through DEFLATE: the table of docs/saving.md.

`python -m experiments.saved_bytes` writes it anew: a stretch of the text that needles are hidden in, read by SmolLM2-135M in 16
bits, compressed, saved twice and read again.
"""

import tempfile
from collections.abc import Iterable
from pathlib import Path

import jax
import numpy as np

import kvjax
from experiments.docs import between
from experiments.files import write_atomically
from experiments.tasks.chat import encode_plain
from experiments.tasks.text import haystack
from kvjax.protocols import LanguageModel

PAGE = Path(__file__).parents[1] / "docs" / "saving.md"
BEGIN, END = "<!-- table: python -m experiments.saved_bytes -->", "<!-- end of table -->"
MODEL, FIRST, LENGTH = "smollm2-135m", 20_000, 2048


def policies() -> dict[str, kvjax.Policy]:
    """What is compared, by the words of its row."""
    methods = kvjax.methods
    found = {"`full`": methods.full(), "`q4_persistent`": methods.q4_persistent(), "`kivi(bits=2)`": methods.kivi(bits=2)}
    return found | {f"`kvtc(ratio={ratio})`": methods.kvtc(ratio=ratio) for ratio in (8, 16, 32)}


def sizes(lm: LanguageModel, cache: kvjax.KVCache, policy: kvjax.Policy) -> tuple[int, int]:
    """Bytes of the file, and of the file through DEFLATE, which is read again.

    Raises:
        ValueError: what was read is not what was saved.
    """
    with tempfile.TemporaryDirectory() as folder:
        plain, small = (
            kvjax.save_cache(cache, Path(folder) / name, lm, policy, deflate=deflate)
            for name, deflate in (("plain", False), ("small", True))
        )
        again = kvjax.load_cache(small, lm, policy)
        pairs = zip(jax.tree.leaves(again), jax.tree.leaves(cache), strict=True)
        if any(np.asarray(x).tobytes() != np.asarray(y).tobytes() for x, y in pairs):
            raise ValueError(f"{small} gave back another cache")
        return plain.stat().st_size, small.stat().st_size


def rows(lm: LanguageModel, ids: list[int]) -> Iterable[str]:
    """A line for each storage; ratios are over keys and values of 16 bits."""
    needs = [*policies().values()]
    pre = kvjax.prefill(lm, ids, needs=needs)
    full = 2 * 2 * lm.decoder.layers * lm.decoder.heads * lm.decoder.head_dim * len(ids)
    for name, policy in policies().items():
        cache = kvjax.compress(pre, policy)
        plain, small = sizes(lm, cache, policy)
        numbers = *(f"{x / 1e6:.2f}" for x in (cache.nbytes, plain, small)), f"{full / small:.1f}"
        yield f"| {name} | " + " | ".join(numbers) + " |"


def table() -> list[str]:
    """The lines of the table."""
    import models

    lm = models.load(MODEL, dtype="bfloat16")
    ids = encode_plain(lm, haystack().text)[FIRST : FIRST + LENGTH]
    head = "| storage | cache, MB | file, MB | through DEFLATE, MB | 16-bit keys and values over that |"
    return [head, "| --- | ---: | ---: | ---: | ---: |", *rows(lm, list(ids))]


def main() -> None:
    """Write the table between its marks."""
    write_atomically(PAGE, between(PAGE.read_text(), "\n".join(table()), BEGIN, END, of=PAGE.name).encode())


if __name__ == "__main__":
    main()
