"""Layer-DefensiveKV: DefensiveKV with one ranking for all layers.

*Taming the Fragility of KV Cache Eviction in LLM Inference*, arXiv 2510.13334.
Stages: as DefensiveKV · allocate ForcedFirst(AcrossModel()).
Differs: as DefensiveKV, the total layers · heads · floor(share · length); protected and forced tokens are above every score of
every layer.

BibTeX:
    @misc{feng2025layerdefensivekv, title={Taming the Fragility of KV Cache Eviction in LLM Inference},
      author={Yuan Feng and others}, year={2025}, eprint={2510.13334}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.layer_defensive_kv(budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.allocate import AcrossModel, ForcedFirst
from kvjax.methods.defensive_kv import defensive_kv
from kvjax.policy import Policy
from kvjax.score import AvgPool
from kvjax.types import Function


def layer_defensive_kv(budget: int | float = 0.2, window: int = 32, pool: Function = AvgPool(5), threshold: float = 0.9) -> Policy:
    """DefensiveKV's scores, the model's slots shared out to layers and heads by one ranking."""
    return defensive_kv(budget, window, pool, threshold).replace(allocate=ForcedFirst(AcrossModel(), window=window))
