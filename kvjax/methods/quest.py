"""Quest: everything is kept, and each query reads the pages whose keys could match it best.

*Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference*, arXiv 2406.10774, section 3.
Stages: retrieve TopPages(token_budget) · nothing is evicted.
Differs: generated tokens are read as they come instead of filling pages, and the last page always, as by the release's kernels; in
its accuracy code the last page competes with the others.

BibTeX:
    @misc{tang2024quest, title={Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference},
      author={Jiaming Tang and others}, year={2024}, eprint={2406.10774}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.quest()
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.policy import Policy
from kvjax.retrieve import OwnPages, TopPages
from kvjax.types import Function


def quest(token_budget: int | float = 1024, page_size: int = 16, skip_layers: int = 2, heads: Function = OwnPages()) -> Policy:
    """Keep every slot, read `token_budget` of them a query in pages of `page_size`.

    Args:
        token_budget: an int, or the share of the prompt as a float in (0, 1].
        page_size: slots of a page, a multiple of 8.   skip_layers: first layers that read everything.
        heads: OwnPages() or SharedPages(): whose pages they are.
    """
    return Policy(retrieve=TopPages(token_budget=token_budget, page_size=page_size, skip_layers=skip_layers, heads=heads))
