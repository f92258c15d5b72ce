"""Every page of docs/results, by its name."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from experiments.ablations import names
from experiments.files import write_atomically
from experiments.result_pages import ablation, board, index, long_decode, model_tasks, published, study, sweep
from experiments.result_pages.claims import QUANTISED, claims

FOLDER = Path(__file__).parents[2] / "docs" / "results"
_FIRST = "Retrieval and perplexity of six methods at three budgets, from the README's first command."
_BITS = (
    "What a needle, a value by its key and a text survive: storages of the library that hold every token in one to eight bits "
    "a number."
)

PAGES: Mapping[str, Callable[[], str]] = {
    "index": index.page,
    "bits": partial(sweep.page, "bits", "Bits a number", _BITS, tuple(claim.pair for claim in claims(QUANTISED))),
    "first": partial(sweep.page, "first", "First sweep", _FIRST),
    "leaderboard": board.page,
    "long_decode": long_decode.page,
    "study": study.page,
    "tasks": model_tasks.page,
    "papers": published.page,
    **{name: partial(ablation.page, name) for name in names()},
}

#: What stands beside a page, and is written with it.
BESIDE: Mapping[str, Callable[[Path], None]] = {"leaderboard": board.beside}


def write(name: str, folder: Path = FOLDER) -> Path:
    """Make one page anew.

    Raises:
        ValueError: there is no page of that name.   OSError: it cannot be written.
    """
    if name not in PAGES:
        raise ValueError(f"no page of results is called {name!r}; there are {', '.join(PAGES)}")
    folder.mkdir(parents=True, exist_ok=True)
    BESIDE.get(name, lambda _: None)(folder)
    return write_atomically(folder / f"{name}.md", PAGES[name]().encode())
