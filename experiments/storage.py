"""Bits of a stored number, as published and as allocated: the table of docs/storage.md.

`python -m experiments.storage` writes it anew. Allocated bits are those of the rows that a codec makes, at head dimension 128
with keys and values in 16 bits: codes, spare bits of their words, steps, minima and scales. Not in them: what is fitted on a
prompt, exact windows, positions (16 bits a slot, 32 where keys are stored un-rotated) and the rounding of pools to size classes,
all of which `KVCache.nbytes` counts.
"""

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

import jax.numpy as jnp

import kvjax
from experiments.docs import between
from experiments.files import write_atomically
from kvjax.codec import Codec
from kvjax.encode import EncodeByLayer, Stored, Tiered

PAGE = Path(__file__).parents[1] / "docs" / "storage.md"
BEGIN, END = "<!-- table: python -m experiments.storage -->", "<!-- end of table -->"
D = 128


def _of(encode: Stored | Tiered | EncodeByLayer, index: int = 0) -> Stored:
    return encode if isinstance(encode, Stored) else encode.stores[index]


def rows() -> Iterable[tuple[str, str, Stored, Fraction, Fraction]]:
    """(method, slots, storage, published bits of keys, of values)."""
    methods, bits = kvjax.methods, Fraction
    yield "kivi", "all", methods.kivi().encode, bits(3), bits(3)
    asymkv = methods.asymkv(key_layers=16, value_layers=0).encode
    yield "asymkv 16/0", "layers 0 to 15", _of(asymkv, 0), bits(3), bits(2)
    yield "asymkv 16/0", "the other layers", _of(asymkv, 1), bits(2), bits(2)
    zipcache = methods.zipcache().encode
    for tier, slots, b in ((1, "salient, prompt", 4), (2, "others, prompt", 2), (3, "salient, later", 4), (4, "others, later", 2)):
        yield "zipcache", slots, _of(zipcache, tier), bits(b), bits(b)
    mikv = methods.mikv().encode
    yield "mikv", "a fifth, important", _of(mikv, 0), bits(16), bits(16)
    yield "mikv", "the others", _of(mikv, 1), bits(5, 2), bits(5, 2)
    yield "think", "all but the last 32", _of(methods.think().encode, 1), bits(16) * 3 / 5, bits(16)
    yield "arkv", "coded", _of(methods.arkv().encode, 1), bits(8), bits(8)
    for ratio in (8, 16):
        yield f"kvtc {ratio}", "all but 4 and the last 128", methods.kvtc(ratio=ratio).encode, bits(16, ratio), bits(16, ratio)
    yield "q4_persistent", "all", methods.q4_persistent().encode, bits(9, 2), bits(9, 2)


def allocated(codec: Codec) -> Fraction:
    """Bits of a number in the codec's rows."""
    return codec.bits_a_number(D, jnp.bfloat16)


def table() -> list[str]:
    """The lines of the table."""
    names = "method", "slots", "keys, published", "keys, allocated", "values, published", "values, allocated"
    lines = ["| " + " | ".join(names) + " |", "| --- | --- | ---: | ---: | ---: | ---: |"]
    for method, slots, store, keys, values in rows():
        numbers = keys, allocated(store.keys), values, allocated(store.values)
        lines.append(f"| `{method}` | {slots} | " + " | ".join(f"{float(x):.3g}" for x in numbers) + " |")
    return lines


def main() -> None:
    """Write the table between its marks."""
    write_atomically(PAGE, between(PAGE.read_text(), "\n".join(table()), BEGIN, END, of=PAGE.name).encode())


if __name__ == "__main__":
    main()
