"""`python -m experiments.leaderboard.pack FOLDER`: the rows of a leaderboard's folder become the committed ones.

A row of each model, cell and prompt is kept, the newest; where a policy has become another one under its old name, by an artefact
made anew, the rows of the former go. Rows that were measured beside uncommitted changes, or whose artefact does not say what it
read, are refused. `kvjax results leaderboard` then makes the pages.
"""

import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from experiments.leaderboard.write import ROWS
from experiments.result_pages.standing import clean, told
from experiments.rows import KEY, Row, key, pack, read

COMMITTED = Path(__file__).parents[1] / "results" / "leaderboard.jsonl.xz"


def joined(old: Sequence[Row], new: Sequence[Row]) -> list[Row]:
    """Both, in the order of their cells; of a cell that both have, the new row, and of a policy's former settings none.

    Raises:
        ValueError: new rows that no page may show.
    """
    unfit = [row for row in new if not (clean(row) and told(row))]
    if unfit:
        first = unfit[0]
        raise ValueError(
            f"{len(unfit)} of {len(new)} rows are not from a commit without changes, or their artefact does not say what it read, "
            f"the first of {first['policy']} at commit {first.get('commit')}: measure them again from a clean checkout"
        )
    settings = defaultdict(set)
    for row in new:
        settings[_of_model(row, "policy", "budget")].add(row["policy_repr"])
    still = [row for row in old if row["policy_repr"] in settings.get(_of_model(row, "policy", "budget"), {row["policy_repr"]})]
    found = {_of_model(row, *KEY): row for row in [*still, *new]}
    return [found[cell] for cell in sorted(found, key=str)]


def _of_model(row: Row, *names: str) -> tuple:
    """The fields of a row, beside those that tell its model: one file has rows of one model, these are of several."""
    return key(row, ("model", "dtype", *names))


def main(folder: Path, committed: Path = COMMITTED) -> int:
    """Join the folder's rows to the committed ones."""
    old = read(committed) if committed.is_file() else []
    rows = joined(old, read(folder / ROWS))
    pack(rows, committed)
    print(f"{len(rows)} rows, {len(old)} before, in {committed}")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1])))
