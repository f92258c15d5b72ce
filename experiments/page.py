"""What a policy kept of a prompt, as one HTML page that needs no network and no server."""

import base64
import html
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.page_template import TEMPLATE
from experiments.pages import embedded
from experiments.report import MB


def kept_mask(cache: Any, tokens: int) -> np.ndarray:
    """bool [l, h, n]: which prompt positions each head of row 0 holds."""
    layers, _, heads = cache.lengths.shape
    mask = np.zeros((layers, heads, tokens), bool)
    for layer in range(layers):
        for head, positions in enumerate(cache.kept(layer)[0]):
            mask[layer, head, positions] = True
    return mask


def render(words: Sequence[str], mask: np.ndarray, facts: Mapping[str, Any]) -> str:
    """The page: every token shaded by the share of heads that kept it, and a choice of layer and head.

    Args:
        words: the text of each prompt token.
        mask: bool [l, h, n], what each head kept.
        facts: title, model, policy, budget, prompt_tokens, allocated_bytes, full_bytes, kept_share.
    """
    layers, heads, _ = mask.shape
    bits = base64.b64encode(np.packbits(mask, axis=-1).tobytes()).decode()
    share = mask.mean((0, 1))
    parts = {
        "TITLE": html.escape(f"{facts['policy']} at {facts['budget']}: what was kept"),
        "FACTS": _facts(facts),
        "LAYERS": _options("layer", layers),
        "HEADS": _options("head", heads),
        "TOKENS": "".join(_token(word, part) for word, part in zip(words, share, strict=True)),
        "DATA": embedded({"layers": layers, "heads": heads, "tokens": len(words), "bits": bits}),
    }
    # one pass, so that a prompt that spells a placeholder stays as it is
    return re.sub(r"\[\[([A-Z]+)\]\]", lambda found: parts[found[1]], TEMPLATE)


def _facts(facts: Mapping[str, Any]) -> str:
    shown = {
        "model": facts["model"],
        "policy": facts["policy_repr"],
        "budget": facts["budget"],
        "prompt": f"{facts['prompt_tokens']} tokens",
        "kept": f"{100 * facts['kept_share']:.1f}% of slots",
        "allocated": f"{facts['allocated_bytes'] / MB:.2f} MB ({facts['allocated_bytes']} bytes)",
        "full cache": f"{facts['full_bytes'] / MB:.2f} MB ({facts['full_bytes']} bytes)",
    }
    return "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(str(value))}</dd>" for name, value in shown.items())


def _options(name: str, count: int) -> str:
    return f'<option value="-1">all {name}s</option>' + "".join(
        f'<option value="{i}">{name} {i}</option>' for i in range(count)
    )


def _token(word: str, share: float) -> str:
    """One token; a line break stays one, marked so that it can be shaded and hovered over."""
    visible = html.escape(word).replace("\r", "").replace("\n", "⏎\n")
    return f'<span style="--s:{share:.3f}">{visible}</span>'
