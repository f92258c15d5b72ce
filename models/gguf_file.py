"""A llama.cpp .gguf file, seen as Hugging Face tensors, config and tokenizer."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kvjax.checks import brief
from models import gguf_tokenizer
from models.config import DecoderConfig
from models.gguf_config import family_of, hf_config
from models.gguf_header import check_counts, check_places
from models.gguf_names import hf_name, to_halves
from models.numbers import one_line
from models.rope import Rope
from models.tokenizer import Tokenizer, stop_ids_of

#: Architectures whose q and k rows llama.cpp stores for rotating neighbouring channels.
_PAIRED = ("llama", "mistral")


class GGUFFile:
    """The tensors (see `weights.Tensors`), config and tokenizer of a GGUF file; quantised blocks become float32.

    llama.cpp rotates neighbouring channels for `llama` and `mistral` and stores their q and k rows in that order;
    `read` puts them back into halves. Without this the text is fluent nonsense.

    Raises:
        ValueError: no GGUF file, a part of one, an unsupported architecture, or metadata that is not honoured.
    """

    def __init__(self, path: Path) -> None:
        self.origin, self.meta, tensors = str(path), *_open(path)
        _check_whole(path, self.meta)
        self.family = family_of(self.meta)
        self._paired = self.meta["general.architecture"] in _PAIRED
        self._tensors = {hf_name(tensor.name): tensor for tensor in tensors}
        if len(self._tensors) < len(tensors):
            raise ValueError(f"{path} holds two tensors of one name; download it again")
        self._divisors = self._tensors.pop("rope_freqs.weight", None)
        self.shapes = {name: tuple(int(n) for n in t.shape[::-1]) for name, t in self._tensors.items()}
        self.hf = hf_config(self.meta, self.shapes)

    @property
    def eos(self) -> tuple[int, ...]:
        """Ids that end a text, a turn or a message: those that the file names, and control tokens whose text says so."""
        return tuple(dict.fromkeys((*self.named_eos, *gguf_tokenizer.ends(self.meta))))

    @property
    def named_eos(self) -> tuple[int, ...]:
        """Ids that keys of the file name."""
        found = (self.meta.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
        return stop_ids_of({"eos_token_id": [i for i in found if i is not None]})

    def config(self) -> DecoderConfig:
        """Return the decoder's configuration, as the family reads it."""
        try:
            config = self.family.config(self.hf)
        except ValueError as error:
            raise ValueError(f"{self.origin}, told as a config.json: {error}") from error
        if self._divisors is None:
            return config
        frequencies, divisors = np.asarray(config.rope.frequencies, np.float32), np.asarray(self._divisors.data, np.float32)
        if divisors.shape != frequencies.shape or not (np.isfinite(divisors) & (divisors >= 1)).all():
            wanted = f"{len(frequencies)} numbers of at least 1"
            raise ValueError(f"{self.origin}: rope_freqs.weight must be {wanted}; download it again")
        # llama.cpp writes llama3 scaling out as one divisor a frequency
        scaled = frequencies / divisors
        return replace(config, rope=Rope(tuple(float(f) for f in scaled), config.rope.factor))

    def tokenizer(self) -> Tokenizer | None:
        """Return the file's tokenizer, None where it holds none. Raises ValueError for a kind that is not known."""
        if "tokenizer.ggml.model" not in self.meta:
            return None
        return Tokenizer(gguf_tokenizer.build(self.meta), self.eos)

    def read(self, name: str) -> np.ndarray:
        """Return one tensor as float32 (out, in)."""
        value = self._unpacked(name)
        if self._paired and ".q_proj." in name:
            return to_halves(value, self.hf["num_attention_heads"])
        if self._paired and ".k_proj." in name:
            return to_halves(value, self.hf["num_key_value_heads"])
        # a copy: float32 tensors would otherwise be views of the mapped file
        return value.copy() if value.base is not None else value

    def _unpacked(self, name: str) -> np.ndarray:
        from gguf import dequantize

        tensor = self._tensors[name]
        try:
            return np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32).reshape(self.shapes[name])
        except (ValueError, NotImplementedError) as error:
            reason = f"{name} is {tensor.tensor_type.name}, {one_line(error)}"
            raise ValueError(f"{self.origin}: {reason}; download it again, or another quantisation") from error


def _check_whole(path: Path, meta: dict[str, Any]) -> None:
    """Raise ValueError for one of several files that hold a model together."""
    count = meta.get("split.count")
    if isinstance(count, int) and count > 1:
        part = f"part {brief(meta.get('split.no', 0) + 1)} of {brief(count)}"
        advice = "join them with `llama-gguf-split --merge FIRST_PART MERGED.gguf` and load MERGED.gguf"
        raise ValueError(f"{path} is {part} of a GGUF file that was split: {advice}")


def _open(path: Path) -> tuple[dict[str, Any], list[Any]]:
    from gguf import GGUFReader

    try:
        check_counts(path)
        reader = GGUFReader(path)
        check_places(reader.tensors, int(reader.alignment))
        return {name: field.contents() for name, field in reader.fields.items()}, reader.tensors
    except Exception as error:  # the reader fails in its own ways: index, value, unicode and memory errors
        raise ValueError(f"{path} is cut short, damaged or no GGUF file ({one_line(error)}); download it again") from error
