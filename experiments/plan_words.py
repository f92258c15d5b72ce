"""What a sweep is asked for, in words: seeds, lengths, and policies x budgets, each a list with commas."""

from experiments.policies import Budget, Named, parse_budget, parse_policy, split_specs
from kvjax.checks import brief
from models.numbers import MOST


def parse_seeds(text: str) -> tuple[int, ...]:
    """`"0,1"` -> (0, 1)."""
    seeds = parts("--seed", text)
    if not all(_fits(seed, 2**32 - 1) for seed in seeds):
        raise ValueError(f"--seed: {brief(text)} is not a list of whole numbers below 2^32, such as 0,1")
    return tuple(dict.fromkeys(map(int, seeds)))


def grid(policies: str, budgets: str) -> tuple[Named, ...]:
    """Every policy at every budget; a method without a budget comes once.

    Raises:
        ValueError: as `parse_budgets` and `parse_policy`, or one policy under two names: a row is of a policy, and knows one.
    """
    shares = parse_budgets(budgets)
    named = [parse_policy(spec, budget) for spec in _specs(policies) for budget in shares]
    found = tuple({(cell.name, cell.budget): cell for cell in named}.values())
    first: dict[tuple[str, Budget], Named] = {}
    for cell in found:
        other = first.setdefault((cell.policy.in_full(), cell.budget), cell)
        if other is not cell:
            raise ValueError(f"--policies: {brief(other.name)} and {brief(cell.name)} are the same policy: name one of them")
    return found


def parse_budgets(text: str) -> tuple[Budget, ...]:
    """`"0.5,256"` -> (0.5, 256): each once.

    Raises:
        ValueError: nothing, what `parse_budget` refuses, or 1 beside 1.0, which rows would not tell apart.
    """
    found = tuple(parse_budget(part) for part in parts("--budgets", text))
    if {int, float} <= {type(budget) for budget in found if budget == 1}:
        raise ValueError("--budgets: 1 is one slot per KV head and 1.0 the whole prompt, and rows call both 1: name one")
    return tuple(dict.fromkeys(found))


def parse_lengths(text: str) -> tuple[int, ...]:
    """`"1024,2048"` -> (1024, 2048): each once."""
    return tuple(dict.fromkeys(parse_length(part) for part in parts("--lengths", text)))


def parse_length(text: str) -> int:
    """A positive number of tokens."""
    if not _fits(text, MOST) or int(text) < 1:
        raise ValueError(f"--lengths: {brief(text)} is not a positive number of tokens below 2^31")
    return int(text)


def numbers(option: str, text: str) -> tuple[float, ...]:
    """`"0.05,0.1"` -> (0.05, 0.1): numbers above 0, each once.

    Raises:
        ValueError: nothing, no number, or one that is not above 0 and below 2^31.
    """
    try:
        found = tuple(dict.fromkeys(map(float, parts(option, text))))
    except ValueError:
        found = ()
    if not found or not all(0 < x <= MOST for x in found):
        raise ValueError(f"{option}: {brief(text)} is not a list of numbers above 0, such as 0.05,0.1")
    return found


def counts(option: str, text: str, most: int) -> tuple[int, ...]:
    """`"1,4"` -> (1, 4): whole numbers from 1 to `most`, each once.

    Raises:
        ValueError: nothing, no whole number, or one out of range.
    """
    found = parts(option, text)
    if not all(_fits(x, most) and int(x) >= 1 for x in found):
        raise ValueError(f"{option}: {brief(text)} is not a list of whole numbers from 1 to {most}, such as 1,4")
    return tuple(dict.fromkeys(map(int, found)))


def _fits(text: str, most: int) -> bool:
    """Whether `text` is a whole number of at most `most`."""
    return text.isdecimal() and len(text) <= 20 and int(text) <= most


def _specs(text: str) -> list[str]:
    specs = split_specs(text)
    if not specs:
        raise ValueError("--policies is empty: name at least one, such as snapkv")
    return specs


def parts(option: str, text: str) -> list[str]:
    """What commas part; an option without anything is refused."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise ValueError(f"{option} is empty: give at least one value")
    return parts
