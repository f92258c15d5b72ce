"""A decoder, its parameters and its tokenizer as one pytree, and how to get one."""

from pathlib import Path
from typing import Any

import jax
from flax import struct
from jax.sharding import Mesh
from jaxtyping import PyTree

from kvjax.artefacts import retrofitted
from kvjax.cache.mesh import sizes
from kvjax.checks import brief
from kvjax.short_repr import attempt, counted, megabytes, one_line
from models import weights
from models.config import DecoderConfig
from models.decoder import Decoder
from models.divided import divided, shardings
from models.families import family_of
from models.files import read_json
from models.gguf_file import GGUFFile
from models.header_sizes import check_sizes
from models.safetensors_folder import SafetensorsFolder
from models.source import resolve
from models.tied_head import settled
from models.tokenizer import Chat, Tokenizer, from_folder, generation_config, stop_ids_of


@struct.dataclass
class LanguageModel:
    """What `models.load` returns: parameters are the leaves, the rest is static.

    Attributes:
        params: see `Decoder`.
        decoder: the pure functions and their configuration.
        tokenizer: None for random weights and for folders without one.
        name: the source that was asked for.
        origin: the folder or file that the weights came from.
        eos: ids that end an answer by the model's own configs.
        part: one device's part of the decoder, where the weights lie on several (`models.shard`).
    """

    params: PyTree
    decoder: Decoder = struct.field(pytree_node=False)
    tokenizer: Tokenizer | None = struct.field(pytree_node=False, default=None)
    name: str = struct.field(pytree_node=False, default="")
    origin: str = struct.field(pytree_node=False, default="")
    eos: tuple[int, ...] = struct.field(pytree_node=False, default=())
    part: Decoder | None = struct.field(pytree_node=False, default=None)

    def __repr__(self) -> str:
        """Its name and sizes in one line."""
        d = self.decoder
        return one_line(
            "LanguageModel",
            repr(self.name),
            attempt(lambda: f"{counted(d.layers, 'layer')} of {d.heads * d.groups} query and {d.heads} KV heads"),
            attempt(lambda: f"{self.params['embed']['weight'].dtype} {megabytes(self.nbytes)}"),
            None if self.tokenizer else "no tokenizer",
        )

    @property
    def config(self) -> DecoderConfig:
        """The decoder's configuration."""
        return self.decoder.config

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end an answer: those of the configs and the tokenizer's own."""
        return self.eos if self.tokenizer is None else self.tokenizer.stop_ids

    @property
    def nbytes(self) -> int:
        """Bytes of the parameters."""
        return weights.nbytes(self.params)

    def encode(self, text: str | Chat, *, add_special_tokens: bool = True) -> list[int]:
        """Return token ids of a string or of a chat (see `Tokenizer.encode`). Raises ValueError without a tokenizer.

        A string that goes on from a cache's text is encoded with `add_special_tokens=False`.
        """
        return self._tokenizer().encode(text, add_special_tokens=add_special_tokens)

    def decode(self, ids: Any) -> str:
        """Return the text of token ids. Raises ValueError without a tokenizer."""
        return self._tokenizer().decode(ids)

    def _tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            advice = "pass token ids, or models.load(..., tokenizer=FOLDER)"
            raise ValueError(f"the model {self.name!r} has no tokenizer: {advice}")
        return self.tokenizer


def load(
    source: str | Path, dtype: Any = "float32", *, tokenizer: str | Path | None = None, mesh: Mesh | None = None
) -> LanguageModel:
    """Load a Llama, Mistral, Qwen2 or Qwen3 checkpoint.

    Args:
        source: a Hugging Face folder or hub id, a .gguf file, or "smollm2-135m"; with "+FOLDER" behind it, the model with the
            weights of an artefact that `kvjax train` made of the model itself.
        dtype: float32, bfloat16 or float16, of every parameter.
        tokenizer: a folder to take the tokenizer from instead.
        mesh: devices to put the weights on, tensor by tensor as they are read, as `shard` lays them out; of a model with an
            artefact once all of them are there.

    Raises:
        FileNotFoundError: nothing there, and nothing to be fetched.
        ValueError: an architecture, config field, tensor, dtype or tokenizer that is not supported; a mesh that does not divide
            the model; with what to do.
    """
    dtype = weights.dtype_name(dtype)
    base, artefact = _retrofit(source)
    if artefact is not None:
        whole = retrofitted(load(base, dtype, tokenizer=tokenizer), artefact)
        return whole if mesh is None else shard(whole, mesh)
    path = resolve(source)
    build = _from_gguf if path.is_file() else _from_folder
    return build(path, dtype, _given(tokenizer), mesh).replace(name=str(source))


def random(config: DecoderConfig, seed: int = 0, dtype: Any = "float32") -> LanguageModel:
    """Return a model with random weights and no tokenizer (a family's `config(hf)` makes the DecoderConfig)."""
    if not isinstance(config, DecoderConfig):
        raise TypeError(f"expected a DecoderConfig, such as models.llama.config({{...}}) makes; got {brief(config)}")
    decoder = Decoder(config)
    return LanguageModel(
        decoder.init(jax.random.key(seed), weights.dtype_name(dtype)), decoder, name=f"random-{seed}", origin="random"
    )


def shard(lm: LanguageModel, mesh: Mesh) -> LanguageModel:
    """The model with its weights over the devices of a mesh; the same model to every call of the library.

    Args:
        lm: a language model.   mesh: from `kvjax.mesh`; groups of rows have all weights each.

    Raises:
        ValueError: a mesh that does not divide the KV heads or the MLP.

    Example:
        lm = models.shard(models.load("smollm2-135m"), kvjax.mesh(rows=2, heads=3))

    Source: Shoeybi et al., "Megatron-LM", arXiv 1909.08053, section 3.
    """
    params = jax.tree.map(jax.device_put, lm.params, _places(lm.decoder, mesh))
    return lm.replace(params=params, part=_part(lm.decoder, mesh))


def _places(decoder: Decoder, mesh: Mesh | None) -> PyTree:
    """Where each parameter lies; None without a mesh."""
    return None if mesh is None else shardings(decoder, mesh)


def _part(decoder: Decoder, mesh: Mesh | None) -> Decoder | None:
    """One device's part of the decoder."""
    return None if mesh is None else divided(decoder, sizes(mesh)[1])


def _retrofit(source: str | Path) -> tuple[str, Path | None]:
    """MODEL+FOLDER as (MODEL, FOLDER) where the folder holds an artefact; (source, None) of all others."""
    base, plus, folder = str(source).rpartition("+")
    if not (base and plus):
        return str(source), None
    found = Path(folder).expanduser()
    return (base, found) if (found / "header.json").is_file() else (str(source), None)


def _given(folder: str | Path | None) -> Tokenizer | None:
    if folder is None:
        return None
    found = from_folder(Path(folder).expanduser())
    if found is None:
        raise FileNotFoundError(f"tokenizer={str(folder)!r} holds no tokenizer.json, tokenizer.model or vocab.json")
    return found


def _from_folder(folder: Path, dtype: str, given: Tokenizer | None, mesh: Mesh | None) -> LanguageModel:
    hf = read_json(folder / "config.json")
    family, tensors = family_of(hf), SafetensorsFolder(folder)
    check_sizes(hf, tensors)
    config, names = settled(family.config(hf), family.NAMES, tensors)
    decoder = Decoder(config)
    configs = (generation_config(folder), hf)
    eos = stop_ids_of(*configs)
    params = weights.assemble(decoder, names, tensors, dtype, _places(decoder, mesh))
    found = Tokenizer(given.inner, eos) if given else from_folder(folder, *configs)
    return LanguageModel(params, decoder, found, origin=str(folder), eos=eos, part=_part(decoder, mesh))


def _from_gguf(path: Path, dtype: str, given: Tokenizer | None, mesh: Mesh | None) -> LanguageModel:
    file = GGUFFile(path)
    check_sizes(file.hf, file)
    decoder = Decoder(file.config())
    found = Tokenizer(given.inner, file.eos) if given else file.tokenizer()
    params = weights.assemble(decoder, file.family.NAMES, file, dtype, _places(decoder, mesh))
    return LanguageModel(params, decoder, found, origin=str(path), eos=file.eos, part=_part(decoder, mesh))
