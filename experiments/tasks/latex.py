r"""When two LaTeX answers are the same: the normalisation published with MATH.

Source: Hendrycks et al., 2021, "Measuring Mathematical Problem Solving With the MATH Dataset", modeling/math_equivalence.py
of its code, result for result, errors included.
"""

import re

#: What the normalisation drops, in this order, then what it writes in another way.
_DROPPED = ("\n", "\\!")
_REPLACED = (("\\\\", "\\"), ("tfrac", "frac"), ("dfrac", "frac"))
_DROPPED_LATER = ("\\left", "\\right", "^{\\circ}", "^\\circ", "\\$")


def equivalent(one: str, other: str) -> bool:
    """Whether both normalise to the same string; compared as they are where one cannot be normalised."""
    try:
        return normalised(one) == normalised(other)
    except (IndexError, ValueError):
        return one == other


def normalised(text: str) -> str:
    """The published normal form of an answer. Raises IndexError or ValueError for LaTeX that it cannot read."""
    for part in _DROPPED:
        text = text.replace(part, "")
    for part, other in _REPLACED:
        text = text.replace(part, other)
    for part in _DROPPED_LATER:
        text = text.replace(part, "")
    text = _without_unit(text).replace("\\%", "").replace(" .", " 0.").replace("{.", "{0.")
    text = _without_name("0" + text if text.startswith(".") else text)
    text = _fractions(_roots(text).replace(" ", ""))
    return _quotient("\\frac{1}{2}" if text == "0.5" else text)


def _without_unit(text: str) -> str:
    r"""What comes before `\text{ `, which only ever begins a unit."""
    if text.count("\\text{ ") > 1:
        raise ValueError(f"two units in {text!r}")
    return text.partition("\\text{ ")[0]


def _without_name(text: str) -> str:
    """`k = 3` -> ` 3`, for names of at most two characters."""
    name, equals, value = text.partition("=")
    return value if equals and "=" not in value and len(name) <= 2 else text


def _roots(text: str) -> str:
    r"""`\sqrt3` -> `\sqrt{3}`."""
    head, *rest = text.split("\\sqrt")
    return head + "".join("\\sqrt" + (part if part[0] == "{" else f"{{{part[0]}}}{part[1:]}") for part in rest)


def _fractions(text: str) -> str:
    r"""`\frac12` -> `\frac{1}{2}` and `\frac1{72}` -> `\frac{1}{72}`."""
    head, *rest = text.split("\\frac")
    made = [head]
    for part in rest:
        if part[0] != "{" and len(part) < 2:
            return text
        short = "" if part[0] == "{" else f"{{{part[0]}}}" + (part[1] if part[1] == "{" else f"{{{part[1]}}}")
        made.append("\\frac" + short + (part[2:] if short else part))
    return "".join(made)


def _quotient(text: str) -> str:
    r"""`3/4` -> `\frac{3}{4}`, for integers as Python prints them."""
    found = re.fullmatch(r"(0|-?[1-9][0-9]*)/(0|-?[1-9][0-9]*)", text)
    return f"\\frac{{{found[1]}}}{{{found[2]}}}" if found else text
