"""Quest: everything is kept, and each query reads the pages whose keys could match it best.

*Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference*, arXiv 2406.10774, section 3.
Stages: retrieve TopPages(tokens) · nothing is evicted.
Differs: generated tokens are read as they come instead of filling pages.
"""

from typing import Any

from kvjax.policy import Policy
from kvjax.retrieve import OwnPages, TopPages


def quest(tokens: int | float = 1024, size: int = 16, dense: int = 2, heads: Any = OwnPages()) -> Policy:
    """Keep every slot, read `tokens` of them a query in pages of `size`.

    Args:
        tokens: an int, or the share of the prompt as a float in (0, 1].
        size: slots of a page, a multiple of 8.   dense: first layers that read everything.
        heads: OwnPages() or SharedPages(): whose pages they are.
    """
    return Policy(retrieve=TopPages(tokens=tokens, size=size, dense=dense, heads=heads))
