"""What a table of a page is made of."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Head:
    """A column: its name, what it is, which way a first click sorts it, whether it holds words, how it is sorted at first."""

    text: str
    title: str = ""
    first: str = "descending"
    words: bool = False
    sorted: str | None = None


@dataclass(frozen=True)
class Cell:
    """What is shown, the number it is sorted by (None: its text), low, mean and high in percent of a bar, a dot's colour."""

    text: str
    value: float | None = None
    interval: tuple[float, float, float] | None = None
    colour: str | None = None
    words: bool = False
