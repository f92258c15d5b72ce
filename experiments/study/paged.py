"""What the full cache takes in a paged engine: pages of a few slots, as many as the tokens need, and a table of where they are.

    bytes = b ⌈(n + m) / page⌉ (page · bytes a slot + 4)

for b requests of n prompt tokens and m new ones; the last page is not full, and a page's number takes 4 bytes. Nothing is run:
times and quality are the full cache's, whose keys and values the pages hold.

Source: vLLM, arXiv 2309.06180, section 4. Differs: no page is shared, and the engine's own reserve is not counted.
"""

from dataclasses import replace

from experiments.study.cell import NOT_RUN, Cell

#: Slots of a page: vLLM's default.
PAGE = 16
#: Bytes of a page's number in a request's table.
_NUMBER = 4


def paged_nbytes(slot: int, tokens: int, requests: int, page: int = PAGE) -> int:
    """Bytes of pages and tables: `slot` bytes of a token in all layers and heads, `tokens` of each request at its end."""
    return requests * -(-tokens // page) * (page * slot + _NUMBER)


def paged(full: Cell, page: int = PAGE) -> Cell:
    """The full cache's cell with the bytes of pages; nobody knows its peak, its times are the full cache's.

    Raises:
        ValueError: the cell of another system.
    """
    if full.policy != "full":
        raise ValueError(f"pages are counted for the full cache; got a cell of {full.policy}")
    held = paged_nbytes(full.slot_bytes, full.tokens + full.new, full.batch, page)
    return replace(full, policy=f"paged:page={page}", cache_bytes=held, peak_bytes=None, peak_from=NOT_RUN)
