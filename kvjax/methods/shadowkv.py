"""ShadowKV: keys in low rank on the device, values in host memory, and chunks of both read where landmarks say so.

*ShadowKV: KV Cache in Shadows for High-Throughput Long-Context LLM Inference*, ICML 2025, arXiv 2410.21465.
Stages: retrieve Landmarks(rank, tokens, chunk, outliers, local, home) · nothing is evicted.
The factors are of a prompt's un-rotated keys, all KV heads of a layer side by side; landmarks are means of rotated keys. What was
generated stays as it is, on the device.
Differs: logits of landmarks are divided by sqrt(d), which the release takes as sqrt(128) for every model; prompts of any length are
treated alike, the release leaves those of up to 4,096 tokens alone.

BibTeX:
    @inproceedings{sun2025shadowkv, title={ShadowKV: KV Cache in Shadows for High-Throughput Long-Context LLM Inference},
      author={Sun, Hanshi and Chang, Li-Wen and Bao, Wenlei and Zheng, Size and Zheng, Ningxin and Liu, Xin and Dong, Harry and
      Chi, Yuejie and Chen, Beidi}, booktitle={International Conference on Machine Learning}, year={2025}, note={arXiv:2410.21465}}

Example:
    policy = kvjax.methods.shadowkv(rank=160, tokens=2048)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.placement import OnDevice, OnHost
from kvjax.policy import Policy
from kvjax.retrieve import Landmarks


def shadowkv(
    rank: int = 160, tokens: int | float = 2048, chunk: int = 8, outliers: int = 48, local: int = 4, home: OnDevice = OnHost()
) -> Policy:
    """Keep values whole and keys in rank `rank`; read `tokens` of the prompt a query, beside outliers and the last chunks.

    Args:
        rank: of a layer's keys, all KV heads together.
        tokens: an int, or the share of the prompt as a float in (0, 1]; 1.0 reads everything.
        chunk: tokens of a chunk.   outliers: chunks a KV head that stay as they are.   local: last chunks that do.
        home: OnHost(), ByCallback(), or OnDevice() where there is no host to offload to.
    """
    return Policy(retrieve=Landmarks(rank=rank, tokens=tokens, chunk=chunk, outliers=outliers, local=local, home=home))
