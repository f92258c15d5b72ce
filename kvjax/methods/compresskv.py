"""CompressKV: a few query heads that look at answers choose the tokens, a measured layer error the budgets.

*CompressKV: Semantic Retrieval Heads Know What Tokens are Not Important Before Generation*, arXiv 2508.02401, sections 3.2, 3.3.
Stages: score RetrievalHeads(window, pool) · allocate LayerWeights(floor, cap 3B, repair) · select TopK(recent=window) · after
the prompt. Both tables come from an artefact, calibrated once a model (`kvjax calibrate compresskv`).
Differs: budgets are exact whatever the prompt's length; the default repair is the released code's, the paper's is `ArgMax()`. The
built-in artefact is of 60 needles in 512 to 2,048 tokens and errors on 4 texts; the release's are of 600 in 1,000 to 50,000 (Llama)
and errors on the 16 data sets of LongBench.

BibTeX:
    @misc{lin2025compresskv, title={CompressKV: Semantic Retrieval Heads Know What Tokens are Not Important Before Generation},
      author={Xiaolin Lin and others}, year={2025}, eprint={2508.02401}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.compresskv(budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.allocate import LayerWeights, RoundRobin
from kvjax.artefacts.artefact import resolve
from kvjax.policy import Policy
from kvjax.score import AvgPool, RetrievalHeads
from kvjax.select import TopK
from kvjax.types import Function

#: Of the 32 query heads of a layer.
PAPER_HEADS = 4


def compresskv(
    budget: int | float = 256, artefact: object = "smollm2-135m", heads: int | None = None, window: int = 8,
    pool: Function = AvgPool(5), *, repair: Function = RoundRobin(), floor: int = 32,
) -> Policy:  # fmt: skip
    """Keep the window and what each layer's `heads` best retrieval heads attend to from it, the same tokens for all KV heads.

    Args:
        budget: mean slots per KV head, or a share of the prompt.
        artefact: an Artefact, the path of one, or the name of a built-in one; of the model that will be prefilled.
        heads: query heads a layer selects by (all of them where it has fewer); None: as many as the artefact's layer errors were
            measured with, an eighth of a layer's unless it was asked otherwise, or the paper's 4 where it does not say.
        window: last queries of the prompt that look, and tokens that always stay.   pool: smoothing along the tokens.
        repair: RoundRobin() or ArgMax(), how rounded budgets reach their total.
        floor: slots every layer is sure of; more than the window.

    Raises:
        ValueError: no heads, or a floor that the window fills.
    """
    found = resolve(artefact, "compresskv")
    heads = found.settings.get("heads", PAPER_HEADS) if heads is None else heads
    if heads < 1:
        raise ValueError(f"compresskv selects by at least 1 head a layer; got heads={heads}")
    if floor <= window:
        raise ValueError(f"a layer's floor of {floor} slots leaves nothing beside the window of {window}: raise floor above it")
    chosen = found.tables["srh"][:, :heads]
    return Policy(
        score=RetrievalHeads(chosen, window=window, pool=pool, origin=f"{found.origin}, best {chosen.shape[1]}"),
        allocate=LayerWeights(found.tables["layer_score"], floor=floor, repair=repair, origin=found.origin),
        select=TopK(recent=window),
        budget=budget,
    )
