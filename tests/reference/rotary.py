"""The rotary embedding, half-split pairs (f, f + d/2), and its undoing."""

import numpy as np
from jaxtyping import Float, Int


def rotate(x: Float[np.ndarray, "*b n d"], positions: Int[np.ndarray, "*c n"], omega: Float[np.ndarray, "f"]) -> np.ndarray:
    """Pair (x_f, x_{f+d/2}) of each row turned by position * omega_f; negative positions turn back."""
    turn = np.asarray(positions, np.float64)[..., None] * omega
    a, b = np.split(x.astype(np.float64), 2, axis=-1)
    cos, sin = np.cos(turn), np.sin(turn)
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def frequencies(config: dict, d: int) -> Float[np.ndarray, "f"]:
    """omega_f = theta^(-2f/d), under the llama3 rule divided by `factor` where a wave is long and blended in between."""
    rope = config.get("rope_parameters") or {}
    omega = float(rope.get("rope_theta", config.get("rope_theta"))) ** (-np.arange(0, d, 2) / d)
    if rope.get("rope_type", "default") == "default":
        return omega
    low, high, old = rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]
    waves = old * omega / (2 * np.pi)  # how often a pair turns within the original length
    blend = np.clip((waves - low) / (high - low), 0, 1)
    return (1 - blend) * omega / rope["factor"] + blend * omega
