"""What a method does, in a few words: the groups of the README's table and of the leaderboard."""

from kvjax.catalogue import MethodInfo

#: The kinds of the README's table, in its order.
KINDS = (
    "slots go after the prompt", "budgets by layer or head", "slots go while decoding", "what goes is merged into what stays",
    "fewer bits", "a part is read, or held elsewhere", "the prompt's own attention is sparse", "trained gates and patterns",
)  # fmt: skip


def kind(info: MethodInfo) -> str:
    """Under which of KINDS a method stands: the first that describes it."""
    stage, acts = info.stages.get, info.acts
    if "training" in info.requires:
        return "trained gates and patterns"
    if stage("retrieve") not in (None, "FullAttention"):
        return "a part is read, or held elsewhere"
    if stage("merge") not in (None, "Drop"):
        return "what goes is merged into what stays"
    if stage("attention") not in (None, "CausalAttention"):
        return "the prompt's own attention is sparse"
    if stage("encode") in ("Tiered", "EncodeByLayer") or (acts == "nothing is evicted" and info.name != "full"):
        return "fewer bits"
    if acts not in ("after the prompt", "nothing is evicted"):
        return "slots go while decoding"
    return "budgets by layer or head" if stage("allocate") != "Uniform" else "slots go after the prompt"
