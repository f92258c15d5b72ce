"""Llama, Mistral, Qwen2 and Qwen3 decoders with a hole where attention goes: `load` one, or make a `random` one."""

from models.config import DecoderConfig
from models.decoder import Decoder
from models.divided import Divided
from models.language_model import LanguageModel, load, random, shard
from models.rope import Rope
from models.shared_layers import SharedDecoder, share_layers

__all__ = [
    "Decoder", "DecoderConfig", "Divided", "LanguageModel", "Rope", "SharedDecoder", "load", "random", "shard", "share_layers",
]
