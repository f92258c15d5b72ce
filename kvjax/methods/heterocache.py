"""HeteroCache: heads that keep the whole prompt watch for those that hold a part of it, and have it replaced when the focus moves.

*HeteroCache: A Dynamic Retrieval Approach to Heterogeneous KV Cache Compression for Long-Context LLM Inference*, arXiv 2601.13684
(ACL 2026), section 4.
Stages: score LastQuery(AvgPool(5), GroupMax) · allocate RoleBudgets(ratio, rounding) · retrieve PivotRefresh(clusters, w, theta) ·
after the prompt. Roles, clusters, ratios and theta come from an artefact, calibrated once a model (`kvjax calibrate heterocache`).
Differs: a satellite gets its pivot's best tokens (the released code the earliest), each row of a batch decides for itself, only
satellites have a copy on the host, and a refresh is read from the second step after the window that asked for it. The built-in
artefact is of 4 texts of 2,048 tokens, k = 256 and 64 steps; the paper's are of 50 of 10,000, k = 1,000 and 100 steps, the
release's by default of one of 5,000, k = 1,024 and 100.

BibTeX:
    @misc{heterocache2026, title={HeteroCache: A Dynamic Retrieval Approach to Heterogeneous KV Cache Compression for Long-Context
      LLM Inference}, author={Shi, Zhiyuan and Qiu, Qibo and Xue, Feng and Jiang, Zhonglin and Yu, Li and Jiang, Jian and
      He, Xiaofei and Wang, Wenxiao}, year={2026}, eprint={2601.13684}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.heterocache(budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

import numpy as np

from kvjax.allocate.roles import Floor, RoleBudgets
from kvjax.artefacts.artefact import resolve
from kvjax.encode import OnDevice, OnHost
from kvjax.policy import Policy
from kvjax.retrieve.clusters import Clusters
from kvjax.retrieve.drift import PivotRefresh, Sliding, Tumbling
from kvjax.score import AvgPool
from kvjax.score.last_query import LastQuery
from kvjax.types import Function


def heterocache(
    budget: int | float = 0.5, artefact: object = "smollm2-135m", theta: float | None = None, w: int = 5,
    pool: Function = AvgPool(5),
    *, rounding: Function = Floor(), window: Tumbling | Sliding = Tumbling(), host: OnDevice = OnHost(), even: bool = False,
) -> Policy:  # fmt: skip
    """Keep all of the prompt for volatile heads and pivots, a share by stability for the others, and refresh the satellites.

    Args:
        budget: mean slots per KV head, or a share of the prompt; more than the full heads take.
        artefact: an Artefact, the path of one, or the name of a built-in one; of the model that will be prefilled.
        theta: drift threshold; None for the artefact's stability threshold.
        w: queries of a drift window.   pool: smoothing of the scores along the tokens.
        rounding: Floor(), as the released code, or ExactTotal(), which loses nothing to rounding and clipping.
        window: Tumbling() or Sliding().   host: home of the satellites' whole prompts.
        even: the same length for all compressed heads (table 4, "w/o allocation"); `policy.replace(retrieve=FullAttention())` is
            its "w/o retrieval".
    """
    found = resolve(artefact, "heterocache")
    ratio, origin = found.tables["alloc_ratio"], found.origin
    if even:
        ratio, origin = np.where(ratio < 0, ratio, np.float32(1)), f"{origin}, even"
    theta = found.settings["theta_stab"] if theta is None else theta
    refresh = PivotRefresh(
        Clusters.of(found.tables["role"], found.tables["cluster"]), w=w, theta=theta, pool=pool, window=window, host=host,
        origin=found.origin,
    )  # fmt: skip
    return Policy(
        score=LastQuery(pool=pool),
        allocate=RoleBudgets(ratio, rounding=rounding, origin=origin),
        retrieve=refresh,
        budget=budget,
    )
