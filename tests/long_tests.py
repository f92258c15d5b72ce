"""Tests that take long run with the slow ones: `long_tests.txt` names them, and is made of a run's durations.

    python -m pytest -n 2 --dist loadfile --durations=0 -vv > LOG
    python -m tests.long_tests LOG SECONDS

adds those that took SECONDS or more. A test that is no longer there loses its line.
"""

import re
import sys
from pathlib import Path

FILE = Path(__file__).with_name("long_tests.txt")
_TOOK = re.compile(r"^([\d.]+)s call +(tests/\S+\.py::.*)$")


def names() -> frozenset[str]:
    """Their node ids."""
    return frozenset(FILE.read_text().splitlines())


def took(log: str) -> dict[str, float]:
    """Seconds of each test's call, as pytest's `--durations` writes them."""
    found = (_TOOK.match(line) for line in log.splitlines())
    return {x[2].rstrip(): float(x[1]) for x in found if x}


def there(name: str) -> bool:
    """Whether the file of a node id has a function of its name."""
    file, _, rest = name.partition("::")
    path, function = Path(__file__).parents[1] / file, rest.partition("[")[0]
    return path.is_file() and f"def {function}(" in path.read_text()


def main(log: str, seconds: str) -> None:
    """Write the file anew."""
    long = {name for name, time in took(Path(log).read_text()).items() if time >= float(seconds)}
    FILE.write_text("".join(f"{name}\n" for name in sorted({name for name in names() if there(name)} | long)))


if __name__ == "__main__":
    main(*sys.argv[1:])
