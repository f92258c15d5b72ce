"""Numbers of a config.json: of the right kind and in a range that arithmetic can bear, or refused; and what is said of them."""

from typing import Any

from kvjax.checks import brief

#: Sizes below this fit 32 bits.
MOST = 2**31 - 1


def number(name: str, value: Any, *, least: float = 0.0, most: float) -> float:
    """Return `value`, a number above `least` and at most `most`.

    Raises:
        ValueError: it is none (true and false are none), not finite, or out of range.
    """
    kind = isinstance(value, int | float) and not isinstance(value, bool)
    if kind and least < value <= most:  # neither NaN nor infinity is
        return float(value)
    raise ValueError(f"{name}: expected a number above {least:g} and at most {most:g}, got {brief(value)}")


def whole(name: str, value: Any, *, least: int = 1) -> int:
    """Return `value`, an integer of at least `least`. Raises ValueError where it is none, or too large for 32 bits."""
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= MOST:
        return value
    kind = "a positive integer" if least == 1 else f"an integer of at least {least}"
    raise ValueError(f"{name}: expected {kind} below 2^31, got {brief(value)}")


def one_line(said: Any, most: int = 200) -> str:
    """Return what another library's error, or a file, says, on one line and with no character that a terminal obeys."""
    text = " ".join(str(said).split()).encode("utf-8", "backslashreplace").decode()
    return "".join(x if x.isprintable() else f"\\x{ord(x):02x}" for x in text)[:most]
