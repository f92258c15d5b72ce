"""What a model is to a memory plan: its decoder without weights, from a built-in named shape or from a config.json."""

from dataclasses import replace
from typing import Any

from models.decoder import Decoder
from models.families import family_of

_LLAMA3 = dict(
    architectures=["LlamaForCausalLM"], vocab_size=128256, num_key_value_heads=8, max_position_embeddings=8192, rms_norm_eps=1e-5,
    rope_theta=500000.0, tie_word_embeddings=False, hidden_act="silu",
)  # fmt: skip
#: config.json of released models, cut to what shapes depend on.
SHAPES: dict[str, dict[str, Any]] = {
    "llama3-8b": _LLAMA3 | dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32),
    "llama3-70b": _LLAMA3 | dict(hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64),
    "mistral-7b": dict(
        architectures=["MistralForCausalLM"], vocab_size=32768, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
        num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=32768, rms_norm_eps=1e-5, rope_theta=1000000.0,
        sliding_window=None, tie_word_embeddings=False, hidden_act="silu",
    ),
    "qwen3-8b": dict(
        architectures=["Qwen3ForCausalLM"], vocab_size=151936, hidden_size=4096, intermediate_size=12288, num_hidden_layers=36,
        num_attention_heads=32, num_key_value_heads=8, head_dim=128, max_position_embeddings=40960, rms_norm_eps=1e-6,
        rope_theta=1000000.0, use_sliding_window=False, tie_word_embeddings=False, hidden_act="silu",
    ),
}  # fmt: skip


def decoder_of(name: str) -> Decoder:
    """The decoder of a named shape, or of what `models.load` takes: a folder with config.json, a hub id, a .gguf file.

    Raises:
        FileNotFoundError: neither a named shape nor anything that is there; lists the named shapes.
        ValueError: a config that is not supported.
    """
    if name in SHAPES:
        return Decoder(family_of(SHAPES[name]).config(SHAPES[name]))
    from models.files import read_json
    from models.gguf_file import GGUFFile
    from models.source import resolve

    try:
        path = resolve(name)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error}; or a named shape: {', '.join(SHAPES)}") from error
    if path.is_file():
        return Decoder(GGUFFile(path).config())
    hf = read_json(path / "config.json")
    return Decoder(family_of(hf).config(hf))


def serving(decoder: Decoder, positions: int) -> Decoder:
    """The decoder for texts of up to `positions` tokens: what a longer context is for memory is four bytes a position."""
    return Decoder(replace(decoder.config, max_positions=max(positions, decoder.max_positions)))


def one_layer(decoder: Decoder) -> Decoder:
    """The same with its first layer alone."""
    return Decoder(replace(decoder.config, layers=1, windows=decoder.windows[:1]))
