"""A toy model and prompts for processes that have no test session around them."""

import numpy as np


def toy_config(**changes) -> dict:
    """A Llama small enough to compile in seconds; heads and layers are the caller's."""
    config = dict(
        model_type="llama", hidden_size=64, intermediate_size=96, head_dim=16, vocab_size=128, max_position_embeddings=1024,
        rms_norm_eps=1e-5, rope_parameters={"rope_theta": 10000.0, "rope_type": "default"}, tie_word_embeddings=False,
        hidden_act="silu",
    )  # fmt: skip
    return {**config, **changes}


def ids_of(length: int, seed: int) -> list[int]:
    """A prompt of random tokens."""
    return np.random.default_rng(seed).integers(0, 128, length).tolist()
