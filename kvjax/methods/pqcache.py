"""PQCache: keys and values in host memory, codes of the prompt's keys on the device, and the tokens they point at fetched.

*PQCache: Product Quantization-based KVCache for Long Context LLM Inference*, SIGMOD 2025, arXiv 2407.12820.
Stages: retrieve PromptCodes(tokens, local, sinks, groups, bits, steps, seed, home) · nothing is evicted.
Codebooks are fitted to each prompt by k-means, nothing is calibrated.
Differs: k-means takes up to `steps` means, where the release takes as many as fit behind the prompt's own computation; generated
tokens stay on the device and are always read, where the release codes the last tokens one by one as new ones come; what was fetched
is not kept for the next step; a code takes a byte. Prompts of any length are treated alike.

BibTeX:
    @article{zhang2025pqcache, title={{PQCache}: Product Quantization-based {KVCache} for Long Context {LLM} Inference},
      author={Zhang, Hailin and Ji, Xiaodong and Chen, Yilin and Fu, Fangcheng and Miao, Xupeng and Nie, Xiaonan and Chen, Weipeng
      and Cui, Bin}, journal={Proceedings of the ACM on Management of Data}, year={2025}, note={arXiv:2407.12820}}

Example:
    policy = kvjax.methods.pqcache(tokens=0.1, local=0.05)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.placement import OnDevice, OnHost
from kvjax.policy import Policy
from kvjax.retrieve import PromptCodes


def pqcache(
    tokens: int | float = 0.05, local: int | float = 0.05, sinks: int = 32, groups: int = 2, bits: int = 6, steps: int = 25,
    seed: int = 0, home: OnDevice = OnHost(),
) -> Policy:  # fmt: skip
    """Keep everything, read the first and last tokens and the `tokens` that codes of the prompt's keys point at.

    Args:
        tokens: an int, or the share of the prompt behind the sinks as a float in (0, 1]; 1.0 reads everything.
        local: last tokens of the prompt that stay on the device, an int or such a share.   sinks: first tokens that do.
        groups: of a key's channels, one code each.   bits: of a code, 1 to 8.
        steps: of k-means, at most.   seed: of the tokens that it starts from.
        home: OnHost(), ByCallback(), or OnDevice() where there is no host to offload to.
    """
    codes = PromptCodes(tokens=tokens, local=local, sinks=sinks, groups=groups, bits=bits, steps=steps, seed=seed, home=home)
    return Policy(retrieve=codes)
