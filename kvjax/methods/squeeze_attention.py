"""SqueezeAttention: layers whose attention hardly turns the residual stream give slots to the others.

*SqueezeAttention: 2D Management of KV-Cache in LLM Inference via Layer-wise Optimal Budget*, arXiv 2404.04793.
Stages: allocate ThreeGroups(least) · everything else of another method, by default StreamingLLM.
Differs: groups are exact, not those of a seeded k-means; totals are exact, so that what a layer cannot hold of a prompt goes to
the others, those of the last group too; a prompt shorter than the budget leaves every layer that budget from then on. Shares are
of the prompt, which the model reads with its own attention; the release's Mistral takes them of 8,000 tokens and reads a prompt
through the windows of the one before.

BibTeX:
    @misc{wang2024squeezeattention,
      title={SqueezeAttention: 2D Management of KV-Cache in LLM Inference via Layer-wise Optimal Budget},
      author={Zihao Wang and others}, year={2024}, eprint={2404.04793}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.squeeze_attention(budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.allocate.three_groups import ThreeGroups
from kvjax.methods.streaming_llm import streaming_llm
from kvjax.policy import Policy


def squeeze_attention(budget: int | float = 0.2, least: float = 0.35, tokens: Policy | None = None) -> Policy:
    """Budgets by layer for `tokens`, a policy that chooses them (sliding window, StreamingLLM, H2O in the paper).

    Published (mean, least of it): 0.21 of the prompt and 0.38 (Mistral), 0.4 and 0.62 (Llama-2 of 32k).
    """
    host = streaming_llm() if tokens is None else tokens
    return host.replace(allocate=ThreeGroups(least=least), budget=budget)
