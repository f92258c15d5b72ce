"""From the `rope_parameters` (or `rope_theta` and `rope_scaling`) of a config.json to a Rope."""

from collections.abc import Callable
from typing import Any

from kvjax.checks import brief
from models import rope
from models.numbers import number, whole
from models.rope import Rope

_COMMON = {"rope_type", "type", "rope_theta"}
_LLAMA3 = {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
_YARN = {"factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale"}
_YARN |= {"mscale_all_dim", "truncate", "finetuned"}
#: Far beyond any that was trained; float32 bears them.
_LARGEST_BASE, _LARGEST_FACTOR = 1e12, 1e6


def resolve(parameters: dict[str, Any], dim: int, max_positions: int) -> tuple[Rope, int]:
    """Return the Rope and the number of positions it serves.

    Args:
        parameters: the fields of `rope_parameters`, `rope_theta` among them. A null is as if the field were absent, but for
            `truncate`, where it is a false, as in transformers.
        dim: head dimension d.
        max_positions: `max_position_embeddings`; the trained length where YaRN does not name one. Linear scaling and
            YaRN lengthen it by their factor, since most such files keep the length before scaling there.

    Raises:
        ValueError: a kind or a field that is not supported, a field that is missing, or a number that is none or out of range.
    """
    given = {name: value for name, value in parameters.items() if value is not None}
    kind = given.get("rope_type", given.get("type", "default"))
    if kind == "yarn" and "truncate" in parameters:
        given["truncate"] = False if parameters["truncate"] is None else parameters["truncate"]
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"rope type {brief(kind)} is not supported; supported are {', '.join(_KINDS)}")
    allowed, build = _KINDS[kind]
    if given.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(f"partial_rotary_factor {brief(given['partial_rotary_factor'])} is not supported; only 1.0 is")
    if unknown := sorted(given.keys() - allowed - _COMMON - {"partial_rotary_factor"}):
        raise ValueError(f"rope type {kind!r} has fields that are not honoured: {', '.join(map(brief, unknown))}")
    try:
        return build(given, dim, max_positions)
    except KeyError as error:
        raise ValueError(f"rope type {kind!r} needs the field {error.args[0]!r}") from None


def _theta(given: dict[str, Any]) -> float:
    return number("rope_theta", given.get("rope_theta", 10000.0), least=1.0, most=_LARGEST_BASE)


def _factor(name: str, value: Any) -> float:
    return number(name, value, most=_LARGEST_FACTOR)


def _original(given: dict[str, Any], positions: int) -> int:
    name = "original_max_position_embeddings"
    return whole(name, given.get(name, positions))


def _plain(given: dict[str, Any], dim: int, positions: int) -> tuple[Rope, int]:
    return rope.plain(_theta(given), dim), positions


def _linear(given: dict[str, Any], dim: int, positions: int) -> tuple[Rope, int]:
    factor = _factor("factor", given["factor"])
    return rope.linear(_theta(given), dim, factor=factor), max(1, int(positions * factor))


def _llama3(given: dict[str, Any], dim: int, positions: int) -> tuple[Rope, int]:
    factor, low, high = (_factor(name, given[name]) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    if low >= high:
        raise ValueError(f"rope type 'llama3' needs low_freq_factor < high_freq_factor, got {low} and {high}")
    built = rope.llama3(_theta(given), dim, factor=factor, low=low, high=high, original=_original(given, positions))
    return built, positions


def _yarn(given: dict[str, Any], dim: int, positions: int) -> tuple[Rope, int]:
    original = _original(given, positions)
    factor = _factor("factor", given.get("factor", positions / original))
    truncate = given.get("truncate", True)
    if not isinstance(truncate, bool):
        raise ValueError(f"truncate: expected true or false, got {brief(truncate)}")
    built = rope.yarn(
        _theta(given),
        dim,
        factor=factor,
        original=original,
        fast=_factor("beta_fast", given.get("beta_fast") or 32),
        slow=_factor("beta_slow", given.get("beta_slow") or 1),
        scale=_scale(given, factor),
        truncate=truncate,
    )
    return built, max(positions, int(original * factor))


def _scale(given: dict[str, Any], factor: float) -> float:
    """YaRN's attention factor: as given, else of `factor` and the two m's."""
    if "attention_factor" in given:
        return _factor("attention_factor", given["attention_factor"])
    return rope.yarn_scale(factor, _m(given, "mscale"), _m(given, "mscale_all_dim"))


def _m(given: dict[str, Any], name: str) -> float | None:
    value = given.get(name, 0)
    return None if value == 0 else _factor(name, value)


_KINDS: dict[str, tuple[set[str], Callable[[dict[str, Any], int, int], tuple[Rope, int]]]] = {
    "default": (set(), _plain),
    "linear": ({"factor"}, _linear),
    "llama3": (_LLAMA3, _llama3),
    "yarn": (_YARN, _yarn),
}
