"""What the library asks of what it is given: a language model, its decoder and rotary embedding, a cache in lower folders.

They are structural types: `models` has the library's own, and another implementation with these names works as well.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol, runtime_checkable

from jax.typing import DTypeLike
from jaxtyping import Array, Float32, Int32, PyTree

from kvjax.types import Keys, Layer, Queries, Regions, Values


@runtime_checkable
class Rope(Protocol):
    """A rotary embedding: cos and sin of positions, and what turns a head by them."""

    def cos_sin(self, positions: Array) -> tuple[Array, Array]: ...

    def rotate(self, x: Array, cos: Array, sin: Array) -> Array: ...


@runtime_checkable
class Decoder(Protocol):
    """The sizes of a decoder that stages are checked against: layers, KV heads h, query heads a KV head g, head dimension d.

    `retrofit` is the origin of the artefact whose weights stand in place of the model's own (`kvjax.artefacts.retrofitted`), or "".
    """

    layers: int
    heads: int
    groups: int
    head_dim: int
    retrofit: str


@runtime_checkable
class DividedDecoder(Decoder, Protocol):
    """One device's part of a decoder that is divided over a mesh axis; the sums it gives are those of all parts."""

    windows: tuple[int | None, ...]
    rope: Rope

    def embed(self, params: PyTree, tokens: Array) -> Array: ...

    def layer(self, weights: PyTree, x: Array, positions: Array, attend: Callable) -> tuple[Array, PyTree]: ...

    def unembed(self, params: PyTree, x: Array) -> Array: ...


@runtime_checkable
class Tokenizer(Protocol):
    """Ids to text, and the ids that end an answer."""

    stop_ids: tuple[int, ...]

    def decode(self, ids: Sequence[int]) -> str: ...


@runtime_checkable
class Backbone(Protocol):
    """A decoder with its parameters."""

    decoder: Decoder
    params: PyTree


@runtime_checkable
class LanguageModel(Protocol):
    """A decoder with its parameters, and its tokenizer if it has one."""

    decoder: Decoder
    params: PyTree
    tokenizer: Tokenizer | None


@runtime_checkable
class Cache(Protocol):
    """The cache as encoders and retrievers see it (`kvjax.cache.KVCache`): pools of rows, and each head's region of them."""

    k: PyTree
    v: PyTree
    start: Regions
    length: Regions
    retrieval: PyTree

    def replace(self, **changes: PyTree) -> "Cache": ...


@runtime_checkable
class Placement(Protocol):
    """Where values live (`kvjax.placement`)."""

    memory_kind: ClassVar[str]

    @property
    def on_device(self) -> bool: ...


@runtime_checkable
class Positioning(Protocol):
    """Where keys and queries stand (`kvjax.encode.positions`)."""

    at_reading: ClassVar[bool]
    query: ClassVar[str]


@runtime_checkable
class Storage(Protocol):
    """How slots are stored, as lower folders see it (`kvjax.encoder.Encoder`); a context is an `AttendContext`."""

    placement: Placement
    positions: Positioning
    dense: bool

    def take(self, cache: Cache, layer: Layer, slots: Int32[Array, "b h n"], dtype: DTypeLike) -> tuple[Keys, Values]: ...

    def scores(self, q: Queries, cache: Cache, context: PyTree) -> Float32[Array, "b h g t n"]: ...

    def attention(self, q: Queries, cache: Cache, context: PyTree) -> tuple[Queries, Float32[Array, "b h g t"]]: ...
