"""SimLayerKV: layers that look only at the first and the last tokens keep only those.

*SimLayerKV: A Simple Framework for Layer-Level KV Cache Reduction*, arXiv 2410.13846.
Stages: score Recency · allocate LazyLayers(threshold) · select TopK(sinks) · after the prompt.
Differs: the prompt's last query decides, its own key left out, as kvpress has it (in the release the first generated token, its own
key among the recent; its Qwen port never lets the last layer be lazy). A lazy layer goes on growing while decoding, as in the
release; the paper's does not. Thresholds of the release: 0.9 for Llama 3, 0.65 for Llama 2, 0.8 for Mistral, 0.85 for Qwen.

BibTeX:
    @misc{zhang2024simlayerkv, title={SimLayerKV: A Simple Framework for Layer-Level KV Cache Reduction},
      author={Xuan Zhang and others}, year={2024}, eprint={2410.13846}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.simlayerkv()
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.allocate import LazyLayers
from kvjax.policy import Policy
from kvjax.score import Recency
from kvjax.select import TopK


def simlayerkv(threshold: float = 0.9, sinks: int = 4, recent: int = 1024) -> Policy:
    """Keep everything, but in lazy layers the first `sinks` and the last `recent` - 1 tokens; no budget is read.

    A layer is lazy where its last query gives both ends more than `threshold` of its attention, averaged over the heads.
    """
    allocate = LazyLayers(sinks=sinks, recent=recent, threshold=threshold)
    return Policy(score=Recency(), allocate=allocate, select=TopK(sinks=sinks))
