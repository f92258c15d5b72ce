"""Small decoders that nobody has trained, by their sizes: `random:layers=4,width=64,heads=4,vocab=32`."""

from typing import Any

from experiments.commands.calibrate import parse_settings

PREFIX = "random:"
#: theta is the rotary embedding's: short texts want a small one.
DEFAULTS = dict(layers=4, width=64, heads=4, hidden=128, vocab=64, positions=1024, theta=100.0, bias=True, seed=0)


def random_model(name: str) -> Any:
    """A Llama of these sizes with random weights, named so.

    Args:
        name: `random:` and what differs from DEFAULTS; a head has width / heads channels, every query head keys of its own.

    Raises:
        ValueError: a size that is not there, of another type, or that does not fit the others.
    """
    import models

    sizes = parse_settings("random", DEFAULTS, [part for part in name.removeprefix(PREFIX).split(",") if part])
    if sizes["width"] % sizes["heads"]:
        raise ValueError(f"{name}: {sizes['heads']} heads do not divide a width of {sizes['width']}")
    config = dict(
        model_type="llama", hidden_size=sizes["width"], intermediate_size=sizes["hidden"], num_hidden_layers=sizes["layers"],
        num_attention_heads=sizes["heads"], vocab_size=sizes["vocab"], max_position_embeddings=sizes["positions"],
        rms_norm_eps=1e-5, rope_theta=sizes["theta"], attention_bias=sizes["bias"], hidden_act="silu",
    )  # fmt: skip
    return models.random(models.llama.config(config), seed=sizes["seed"]).replace(name=name)
