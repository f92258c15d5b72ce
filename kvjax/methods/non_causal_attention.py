"""Non-causal attention: what a key receives from all queries of its chunk, times the size of its value.

One of the two terms of *Compactor: Calibrated Query-Agnostic KV Cache Compression with Approximate Leverage Scores*,
arXiv 2507.08143, section 3.3, by itself.
Stages: score NonCausalAttention(chunk) · after the prompt. Records one number a query head and token.

BibTeX:
    @misc{chari2025noncausalattention, title={Non-causal attention},
      author={Vivek Chari and others}, year={2025}, eprint={2507.08143}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.non_causal_attention(budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.policy import Policy
from kvjax.score import NonCausalAttention


def non_causal_attention(budget: int | float = 256, chunk: int = 256, filled: bool = False) -> Policy:
    """Keep the tokens their neighbours on both sides attend to; `filled` fills a short last chunk with zeros, as kvpress does."""
    return Policy(score=NonCausalAttention(chunk=chunk, filled=filled), budget=budget)
