"""CAKE: layers share the cache by how spread out and how changeable their attention is.

*CAKE: Cascading and Adaptive KV Cache Eviction with Layer Preferences*, arXiv 2503.12491.
Stages: score MeanAndVariance(window, gamma) · allocate LayerPreference(tau1, tau2) · select TopK(recent=window) · every step by the
last query's attention, pooled.
Differs: budgets are shared out once all layers have been seen, and sum exactly; `cascade=True` is the paper's order. The
release's rounding is `.replace(allocate=LayerPreference(..., share=ClipAndSpread()))`. A layer's budget counts its window. A
prompt shorter than the budget leaves every layer that budget from then on. While decoding, attention is pooled over neighbours in
the text; the release's slots stay in the order of their scores, and are pooled in it.

BibTeX:
    @misc{qin2025cake, title={CAKE: Cascading and Adaptive KV Cache Eviction with Layer Preferences},
      author={Ziran Qin and others}, year={2025}, eprint={2503.12491}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.cake(budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.allocate import LayerPreference
from kvjax.policy import Policy
from kvjax.schedule import Every
from kvjax.score import AvgPool, MeanAndVariance, WindowAttention
from kvjax.select import TopK


def cake(
    budget: int | float = 256, window: int = 32, gamma: float = 200.0, tau1: float = 1.0, tau2: float = 1.0, cascade: bool = False
) -> Policy:
    """Keep the window and what its queries attend to most or most changeably; decode by what the last query attends to.

    Published temperatures (tau1, tau2) at budgets of 1024 and 128: Llama-3.1-8B (1.6, 0.4), (1.6, 0.6); Mistral-7B-v0.3 (0.8, 0.5),
    (1.0, 0.8); Qwen2.5-7B (1.5, 0.6), (0.4, 0.6).
    """
    pool = AvgPool(5)
    return Policy(
        score=MeanAndVariance(window=window, gamma=gamma, pool=pool),
        allocate=LayerPreference(window=window, tau1=tau1, tau2=tau2, cascade=cascade),
        select=TopK(recent=window),
        when=Every(1, score=WindowAttention(window=1, pool=pool, apart=window)),
        budget=budget,
    )
