"""Layers that own no cache and read that of the nearest kept layer below them (R-CLA, as it is served).

*Stochastic KV Routing: Enabling Adaptive Depth-Wise Cache Sharing*, arXiv 2604.22782. A model trained with layers that read earlier
layers' keys and values at random is served with any set of kept layers that contains layer 0; queries are always a layer's own.
Only kept layers have keys and values: everything in kvjax that counts layers counts those, and `len(kept) / L` of the bytes are
left, times what a policy leaves. A layer that is not kept computes no keys and values (the compiler drops what nobody reads).

What policies read of a prompt is recorded by the kept layers, of their own queries. Calibrations are of the model before layers are
shared. `kvjax train stochastic_kv_routing` trains a model for it (`kvjax.train.learners.StochasticKVRouting`).

BibTeX:
    @article{stochastickvrouting2026,
      title={Stochastic {KV} Routing: Enabling Adaptive Depth-Wise Cache Sharing},
      journal={arXiv preprint arXiv:2604.22782},
      year={2026}
    }

Example:
    half = models.share_layers(models.load("HuggingFaceTB/SmolLM2-135M"), every=2)
    out = kvjax.generate(half, text, kvjax.methods.snapkv(budget=256))
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from jaxtyping import Array, Float, Int32, PyTree

from models.decoder import Decoder
from models.language_model import LanguageModel


def sources(layers: int, kept: Sequence[int]) -> tuple[int, ...]:
    """source[l]: the nearest kept layer at or below l.

    Raises:
        ValueError: a set without layer 0, or with layers that the model lacks.
    """
    if 0 not in kept or not set(kept) <= set(range(layers)):
        raise ValueError(f"kept layers are some of 0 to {layers - 1}, 0 among them; got {tuple(kept)}")
    return tuple(max(mine for mine in kept if mine <= layer) for layer in range(layers))


@dataclass(frozen=True)
class SharedDecoder(Decoder):
    """A decoder of which some layers read another's cache: `layers` are the kept ones, each with those that read it.

    `params["layers"]` holds a tuple for each kept layer: its weights, and those of its readers. `layer` calls `attend(inputs)` for
    the kept layer and `attend(inputs, aux)` for a reader, aux being what was given back last.
    """

    source: tuple[int, ...] = ()

    @property
    def kept(self) -> tuple[int, ...]:
        """Layers that own a cache."""
        return tuple(sorted(set(self.source)))

    @property
    def layers(self) -> int:
        """Number of layers that own a cache."""
        return len(self.kept)

    @property
    def windows(self) -> tuple[int | None, ...]:
        return tuple(self.config.windows[layer] for layer in self.kept)

    def layer(
        self, weights: PyTree, x: Float[Array, "b t e"], positions: Int32[Array, "b t"], attend: Callable[..., tuple[Array, Any]]
    ) -> tuple[Float[Array, "b t e"], Any]:
        own, *readers = weights
        x, aux = super().layer(own, x, positions, attend)
        for reader in readers:
            x, aux = super().layer(reader, x, positions, partial(attend, after=aux))
        return x, aux


def share_layers(lm: LanguageModel, *, every: int | None = None, kept: Sequence[int] | None = None) -> LanguageModel:
    """The same model with a cache for some layers alone; parameters are shared with `lm`, not copied.

    Args:
        lm: a language model, trained to be served so.
        every: keep every so many-th layer, from 0 on.   kept: or the layers to keep, 0 among them.

    Raises:
        ValueError: neither or both given, a set without layer 0, a layer that would read one with another sliding window, a model
            over the devices of a mesh.
        TypeError: a model whose layers are shared already.
    """
    if isinstance(lm.decoder, SharedDecoder):
        raise TypeError("this model's layers are shared already: begin with the model as it was loaded")
    if lm.part is not None:
        raise ValueError("this model lies over the devices of a mesh: share its layers first, then models.shard what comes out")
    if (every is None) == (kept is None) or (every is not None and every < 1):
        raise ValueError(f"say every= (1 or more) or kept=, one of them; got every={every}, kept={kept}")
    layers, windows = lm.decoder.layers, lm.decoder.windows
    source = sources(layers, range(0, layers, every) if every else kept)
    other = [layer for layer, mine in enumerate(source) if windows[layer] != windows[mine]]
    if other:
        raise ValueError(f"layers {other} would read layers of another sliding window: keep them, or keep one of theirs below")
    groups = [tuple(w for w, s in zip(lm.params["layers"], source, strict=True) if s == k) for k in sorted(set(source))]
    decoder = SharedDecoder(lm.decoder.config, source, retrofit=lm.decoder.retrofit)
    return lm.replace(params={**lm.params, "layers": groups}, decoder=decoder)
