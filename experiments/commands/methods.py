"""`kvjax methods`: every published method, what it keeps, when, and what a slot costs."""

from dataclasses import asdict
from typing import Annotated

import typer

import kvjax
from experiments.console import Dtype, JsonFile, out, write_json
from kvjax.catalogue import MethodInfo


def methods(
    head_dim: Annotated[int, typer.Option(min=2, help="Head dimension that bytes are counted for.")] = 128,
    dtype: Dtype = "bfloat16",
    json_file: JsonFile = None,
) -> None:
    """List every method: the paper, what it keeps and when, what it needs, and the bytes of a slot."""
    found = every_method(head_dim=head_dim, dtype=dtype)
    rows = [("method", "arXiv", "needs", "bytes a slot", "acts", "keeps"), *map(row, found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for words in rows:
        out.print("  ".join(word.ljust(width) for word, width in zip(words, widths, strict=True)).rstrip(), markup=False)
    payload = [asdict(info) for info in found]
    write_json(json_file, {"head_dim": head_dim, "dtype": dtype, "methods": payload})


def row(info: MethodInfo) -> tuple[str, ...]:
    """One line of the list."""
    return info.name, info.arxiv or "", ", ".join(info.requires), bytes_text(info), info.acts, info.keeps


def every_method(*, head_dim: int = 128, dtype: str = "bfloat16") -> list[MethodInfo]:
    """All of them, by name."""
    return [kvjax.methods.info(name, head_dim=head_dim, dtype=dtype) for name in kvjax.methods.names()]


def bytes_text(info: MethodInfo) -> str:
    """Device bytes of a slot, and those in host memory where there are any."""
    if info.slot_nbytes is None:
        return ""
    return f"{info.slot_nbytes} + {info.host_nbytes} on the host" if info.host_nbytes else str(info.slot_nbytes)
