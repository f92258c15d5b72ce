"""Tables in markdown whose cells stay cells, whatever is in them."""

import re
from collections.abc import Sequence

from models.numbers import one_line

#: What would end a cell, open HTML, or be read as emphasis, code or a link.
_MARKS = re.compile(r"[\\`*|<>]|\](?=[(\[:])|(?<![^\W_])_|_(?![^\W_])")


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, texts: int) -> list[str]:
    """The lines of a table; the first `texts` columns lean to the left, the others to the right."""
    first, *body = ([escaped(cell) for cell in row] for row in (heads, *rows))
    rule = ["---"] * texts + ["--:"] * (len(heads) - texts)
    return ["| " + " | ".join(row) + " |" for row in (first, rule, *body)]


def escaped(text: str) -> str:
    """`text` on one line, shown by markdown as it is; underscores inside a word mean nothing there and stay."""
    return _MARKS.sub(r"\\\g<0>", one_line(text, most=1000))
