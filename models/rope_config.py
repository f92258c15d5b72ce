"""From the `rope_parameters` (or `rope_theta` and `rope_scaling`) of a config.json to a Rope."""

from collections.abc import Callable
from typing import Any

from models import rope
from models.rope import Rope

_COMMON = {"rope_type", "type", "rope_theta"}
_LLAMA3 = {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
_YARN = {"factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale"}
_YARN |= {"mscale_all_dim", "truncate", "finetuned"}


def resolve(parameters: dict[str, Any], dim: int, max_positions: int) -> tuple[Rope, int]:
    """Return the Rope and the number of positions it serves.

    Args:
        parameters: the fields of `rope_parameters`, `rope_theta` among them.
        dim: head dimension d.
        max_positions: `max_position_embeddings`; the trained length where YaRN does not name one. Linear scaling and
            YaRN lengthen it by their factor, since most such files keep the length before scaling there.

    Raises:
        ValueError: a kind or a field that is not supported, or a field that is missing.
    """
    given = {name: value for name, value in parameters.items() if value is not None}
    kind = given.get("rope_type", given.get("type", "default"))
    if kind not in _KINDS:
        raise ValueError(f"rope type {kind!r} is not supported; supported are {', '.join(_KINDS)}")
    allowed, build = _KINDS[kind]
    if given.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(f"partial_rotary_factor {given['partial_rotary_factor']} is not supported; only 1.0 is")
    if unknown := sorted(given.keys() - allowed - _COMMON - {"partial_rotary_factor"}):
        raise ValueError(f"rope type {kind!r} has fields that are not honoured: {', '.join(unknown)}")
    try:
        return build(given, dim, max_positions)
    except KeyError as error:
        raise ValueError(f"rope type {kind!r} needs the field {error.args[0]!r}") from None


def _theta(given: dict[str, Any]) -> float:
    return float(given.get("rope_theta", 10000.0))


def _plain(given: dict[str, Any], dim: int, positions: int) -> tuple[Rope, int]:
    return rope.plain(_theta(given), dim), positions


def _linear(given: dict[str, Any], dim: int, positions: int) -> tuple[Rope, int]:
    factor = float(given["factor"])
    return rope.linear(_theta(given), dim, factor=factor), int(positions * factor)


def _llama3(given: dict[str, Any], dim: int, positions: int) -> tuple[Rope, int]:
    original = given.get("original_max_position_embeddings", positions)
    low, high = float(given["low_freq_factor"]), float(given["high_freq_factor"])
    if low >= high:
        raise ValueError(f"rope type 'llama3' needs low_freq_factor < high_freq_factor, got {low} and {high}")
    built = rope.llama3(_theta(given), dim, factor=float(given["factor"]), low=low, high=high, original=original)
    return built, positions


def _yarn(given: dict[str, Any], dim: int, positions: int) -> tuple[Rope, int]:
    original = given.get("original_max_position_embeddings", positions)
    factor = float(given.get("factor", positions / original))
    scale = given.get("attention_factor")
    if scale is None:
        scale = rope.yarn_scale(factor, given.get("mscale"), given.get("mscale_all_dim"))
    built = rope.yarn(
        _theta(given),
        dim,
        factor=factor,
        original=original,
        fast=float(given.get("beta_fast") or 32),
        slow=float(given.get("beta_slow") or 1),
        scale=float(scale),
        truncate=given.get("truncate", True),
    )
    return built, max(positions, int(original * factor))


_KINDS: dict[str, tuple[set[str], Callable[[dict[str, Any], int, int], tuple[Rope, int]]]] = {
    "default": (set(), _plain),
    "linear": ({"factor"}, _linear),
    "llama3": (_LLAMA3, _llama3),
    "yarn": (_YARN, _yarn),
}
