"""The stages that are crossed: every scorer, allocator, selector and merger, and the schedules, sized for a prompt of 40 tokens."""

import numpy as np

import kvjax
from kvjax import AfterPrefill, Every, WhenFull, allocate, merge, score, select
from kvjax.evidence import WindowQueries
from kvjax.merge import Fixed
from kvjax.stage import Stage
from tests.method_cases import case, convolution

#: Tokens of the prompt, and mean slots a KV head.
PROMPT, BUDGET = 40, 14

_policies = [case(name).build(BUDGET) for name in kvjax.methods.names()]
_rng = np.random.default_rng(0)


def _table(*shape: int) -> np.ndarray:
    return _rng.normal(size=shape).astype(np.float32)


#: Stages that no method uses as `tests.method_cases` builds it.
_SCORERS = (
    score.BlockKeyDiff(budget=BUDGET, block=16),
    score.ChunkKeyDiff(size=8),
    score.DistanceSeries(mean=_table(3, 2, 2, 16), norms=np.abs(_table(3, 2, 2, 8)), origin="toy"),
    score.FreshDraws(),
    score.HighestRow(),
    score.OwnDistanceSeries(),
    score.PooledByQueryHead(window=8, pool=score.MaxPool(3)),
    score.Pursuit(queries=WindowQueries(16), most=16),
    score.QueryFilter(filters=_table(3, 2, 16), origin="toy"),
    score.VisibleMeanAttention(),
)
_ALLOCATORS = (
    allocate.AdaptiveRounded(),
    allocate.AllHeld(),
    allocate.AllocateByLayer(rest=allocate.Uniform(), kinds=(allocate.Pyramid(),), layers=((0, 2),)),
    allocate.HeadVariance(),
    allocate.PyramidRounded(window=4),
    allocate.WholeLayers(layers=(0,)),
)
_SELECTORS = select.AtLeast(), select.BlockShare(sinks=2, lag=8), select.EachChunk(size=8)
_MERGERS = merge.Convolved.of(convolution(6)), merge.NearestKey(threshold=0.2), merge.ProportionalNearest(threshold=Fixed(0.2))


def _by_class(slot: str, own: tuple[Stage, ...]) -> dict[str, Stage]:
    """One stage of each class by its name: ours, else that of the first method that has one."""
    found = {type(stage).__name__: stage for stage in own}
    for policy in _policies:
        found.setdefault(type(getattr(policy, slot)).__name__, getattr(policy, slot))
    return dict(sorted(found.items()))


SCORERS = _by_class("score", _SCORERS)
ALLOCATORS = _by_class("allocate", _ALLOCATORS)
SELECTORS = _by_class("select", _SELECTORS)
MERGERS = _by_class("merge", _MERGERS)
SCHEDULES = {
    "AfterPrefill": AfterPrefill(),
    "Every": Every(2),
    "Every(grows=True)": Every(1, grows=True),
    "Every(reallocate=True)": Every(1, reallocate=True),
    "WhenFull": WhenFull(2),
}
